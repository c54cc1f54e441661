#include "fabric/rate_changes.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "fabric/routes.h"

namespace q7x2 {
namespace {

constexpr int kAny = -1;
constexpr double kOne = 1000;

void require_host(const Fabric& fabric, int host) {
  if (host < kAny || host >= static_cast<int>(fabric.hosts.size())) {
    throw Error(ErrorCode::kInvalidArgument, "a link of host " + std::to_string(host) + " of " +
                                                 std::to_string(fabric.hosts.size()));
  }
}

/// The measured pair, added if there is none.
Fabric::Pair& pair_of(Fabric& fabric, int from, int to) {
  const auto known = std::ranges::find_if(
      fabric.pairs, [&](const Fabric::Pair& pair) { return pair.from == from && pair.to == to; });
  if (known != fabric.pairs.end()) return *known;
  const Routes::Route route = Routes(fabric).between_hosts(from, to);
  Fabric::Pair pair{.from = from, .to = to, .alpha = route.cost.alpha};
  if (std::isfinite(route.rate)) pair.rate = route.rate;
  fabric.pairs.push_back(pair);
  return fabric.pairs.back();
}

std::string name_of(const Fabric& fabric, std::pair<int, int> link) {
  const auto host = [&](int index) {
    return "host " + fabric.hosts[static_cast<size_t>(index)].name;
  };
  if (link.second == kAny) return host(link.first) + " sends";
  if (link.first == kAny) return host(link.second) + " receives";
  return host(link.first) + " sends to " + host(link.second);
}

}  // namespace

Fabric with_rate_changes(const Fabric& measured, const RateFactors& factors) {
  Fabric fabric = measured;
  if (!factors.empty()) fabric.tuned.clear();
  for (const auto& [link, thousandths] : factors) {
    const auto [from, to] = link;
    require_host(fabric, from);
    require_host(fabric, to);
    const double factor = static_cast<double>(thousandths) / kOne;
    if (to == kAny) {
      fabric.hosts[static_cast<size_t>(from)].egress *= factor;
    } else if (from == kAny) {
      fabric.hosts[static_cast<size_t>(to)].ingress *= factor;
    } else {
      Fabric::Pair& pair = pair_of(fabric, from, to);
      pair.rate *= factor;
      pair.solo *= factor;
    }
  }
  return fabric;
}

std::string rate_changes_text(const Fabric& measured, const RateFactors& before,
                              const RateFactors& after) {
  std::string text;
  const auto add = [&](const std::string& sentence) {
    text += (text.empty() ? "" : "; ") + sentence;
  };
  for (const auto& [link, thousandths] : after) {
    const auto known = before.find(link);
    if (known != before.end() && known->second == thousandths) continue;
    add(name_of(measured, link) + " at " + std::to_string((thousandths + 5) / 10) +
        " % of its measured rate");
  }
  for (const auto& [link, thousandths] : before) {
    if (!after.contains(link)) add(name_of(measured, link) + " at its measured rate again");
  }
  return text;
}

}  // namespace q7x2
