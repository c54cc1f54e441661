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
    throw Error(ErrorCode::kInvalidArgument, "a rate of host " + std::to_string(host) + " of " +
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

/// The CPU's rates of a host, as its own.
Fabric::Rates& own_rates(Fabric& fabric, int host) {
  std::vector<Fabric::Rates>& all = fabric.hosts[static_cast<size_t>(host)].rates;
  Fabric::Rates rates;
  rates.copy = fabric.host_copy_rate(host);
  rates.reduce = fabric.host_reduce_rate(host);
  const auto known = std::ranges::find(all, rates.device, &Fabric::Rates::device);
  Fabric::Rates& own = known == all.end() ? all.emplace_back() : *known;
  rates.codecs = own.codecs;
  for (const Fabric::CodecRate& codec : fabric.codecs) {
    const auto same = std::ranges::find(rates.codecs, codec.name, &Fabric::CodecRate::name);
    if (same == rates.codecs.end()) rates.codecs.push_back(codec);
  }
  return own = std::move(rates);
}

void change_processor(Fabric& fabric, int host, double factor) {
  Fabric::Rates& rates = own_rates(fabric, host);
  rates.copy *= factor;
  rates.reduce *= factor;
  for (Fabric::CodecRate& codec : rates.codecs) {
    codec.encode *= factor;
    codec.decode *= factor;
    codec.encode_sum *= factor;
    codec.select *= factor;
  }
}

std::string host_text(const Fabric& fabric, int host) {
  return "host " + fabric.hosts[static_cast<size_t>(host)].name;
}

std::string name_of(const Fabric& fabric, std::pair<int, int> of) {
  if (of.first == of.second) return host_text(fabric, of.first) + " computes";
  if (of.second == kAny) return host_text(fabric, of.first) + " sends";
  if (of.first == kAny) return host_text(fabric, of.second) + " receives";
  return host_text(fabric, of.first) + " sends to " + host_text(fabric, of.second);
}

}  // namespace

Fabric with_rate_changes(const Fabric& measured, const RateFactors& factors) {
  Fabric fabric = measured;
  if (!factors.empty()) fabric.tuned.clear();
  for (const auto& [of, thousandths] : factors) {
    const auto [from, to] = of;
    require_host(fabric, from);
    require_host(fabric, to);
    const double factor = static_cast<double>(thousandths) / kOne;
    if (from == to) {
      change_processor(fabric, from, factor);
    } else if (to == kAny) {
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
                              const RateFactors& after, const std::set<int>& forgotten) {
  std::string text;
  const auto add = [&](const std::string& sentence) {
    text += (text.empty() ? "" : "; ") + sentence;
  };
  for (const auto& [of, thousandths] : after) {
    const auto known = before.find(of);
    if (known != before.end() && known->second == thousandths) continue;
    add(name_of(measured, of) + " at " + std::to_string((thousandths + 5) / 10) +
        " % of its measured rate");
  }
  for (const auto& [of, thousandths] : before) {
    if (after.contains(of)) continue;
    if (of.first == of.second && forgotten.contains(of.first)) {
      add(host_text(measured, of.first) +
          " has had too little to do for ten minutes, and counts as recovered");
    } else {
      add(name_of(measured, of) + " at its measured rate again");
    }
  }
  return text;
}

}  // namespace q7x2
