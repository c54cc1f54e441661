#include "fabric/rate_changes.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "fabric/private_links.h"
#include "fabric/routes.h"

namespace q7x2 {
namespace {

using Kind = RatedResource::Kind;

constexpr double kOne = 1000;

bool is_processor(const RatedResource& of) {
  return of.kind == Kind::kNetwork && of.from == of.to;
}

void require_known(const Fabric& fabric, const RatedResource& of) {
  const bool is_cable = of.kind == Kind::kCable;
  const size_t count = is_cable ? fabric.racks.size() : fabric.hosts.size();
  for (const int each : {of.from, of.to}) {
    if (each >= kAnyHost && each < static_cast<int>(count)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("a rate of ") + (is_cable ? "rack " : "host ") + std::to_string(each) +
                    " of " + std::to_string(count));
  }
  const bool is_one_way = (of.from == kAnyHost) != (of.to == kAnyHost);
  if ((of.from == kAnyHost && of.to == kAnyHost) || (is_cable && !is_one_way)) {
    throw Error(ErrorCode::kInvalidArgument, "a rate of no host or rack");
  }
  if (of.kind == Kind::kLink && find_link(fabric, of.from, of.to) == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "a rate of a private link that is not there: " + std::to_string(of.from) + " to " +
                    std::to_string(of.to));
  }
}

/// The measured pair, added if there is none.
Fabric::Pair& pair_of(Fabric& fabric, int from, int to, double alpha) {
  const auto known = std::ranges::find_if(
      fabric.pairs, [&](const Fabric::Pair& pair) { return pair.from == from && pair.to == to; });
  if (known != fabric.pairs.end()) return *known;
  return fabric.pairs.emplace_back(Fabric::Pair{.from = from, .to = to, .alpha = alpha});
}

/// `solo` is what Routes goes by. Without it the pair has the rate of what it shares with others.
/// `shared`: the routes over the network that all hosts share.
void change_route(const Routes& shared, int from, int to, double factor, Fabric& fabric) {
  const Routes::Route route = shared.between_hosts(from, to);
  if (std::isfinite(route.rate)) {
    pair_of(fabric, from, to, route.cost.alpha).solo = route.rate * factor;
  }
}

void change_link(const Fabric& measured, int from, int to, double factor, Fabric& fabric) {
  const double rate = find_link(measured, from, to)->rate * factor;
  for (Fabric::Link& link : fabric.links) {
    if (std::minmax(link.a, link.b) == std::minmax(from, to)) link.rate = std::min(link.rate, rate);
  }
}

/// Links that were worth it, and are not any more: the shared network of their hosts is faster.
void drop_slow_links(const Fabric& measured, Fabric& fabric) {
  Fabric shared = fabric;
  shared.links.clear();
  const Routes routes(shared);
  std::erase_if(fabric.links, [&](const Fabric::Link& link) {
    return link.rate < find_link(measured, link.a, link.b)->rate &&
           link.rate <= std::max(routes.between_hosts(link.a, link.b).rate,
                                 routes.between_hosts(link.b, link.a).rate);
  });
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

std::string name_of(const Fabric& fabric, const RatedResource& of) {
  if (of.kind == Kind::kCable) {
    const bool leaves = of.to == kAnyHost;
    const int rack = leaves ? of.from : of.to;
    const std::string& name = fabric.racks[static_cast<size_t>(rack)].name;
    return "the cable of " + (name.empty() ? "rack " + std::to_string(rack) : name) +
           " carries what " + (leaves ? "leaves" : "enters");
  }
  if (of.kind == Kind::kLink) {
    return host_text(fabric, of.from) + " sends to " + host_text(fabric, of.to) +
           " over their private link";
  }
  if (is_processor(of)) return host_text(fabric, of.from) + " computes";
  if (of.to == kAnyHost) return host_text(fabric, of.from) + " sends";
  if (of.from == kAnyHost) return host_text(fabric, of.to) + " receives";
  return host_text(fabric, of.from) + " sends to " + host_text(fabric, of.to);
}

/// What counts as recovered because nothing was known of it.
std::string forgotten_text(const Fabric& fabric, const RatedResource& of) {
  if (is_processor(of)) {
    return host_text(fabric, of.from) +
           " has had too little to do for ten minutes, and counts as recovered";
  }
  return name_of(fabric, of) +
         " at an unknown rate: nothing has passed for ten minutes, so it "
         "counts as recovered";
}

}  // namespace

Fabric with_rate_changes(const Fabric& measured, const RateFactors& factors) {
  Fabric fabric = measured;
  if (factors.empty()) return fabric;
  fabric.tuned.clear();
  Fabric without_links = measured;
  without_links.links.clear();
  const Routes shared(without_links);
  for (const auto& [of, thousandths] : factors) {
    require_known(fabric, of);
    const double factor = static_cast<double>(thousandths) / kOne;
    switch (of.kind) {
      case Kind::kCable:
        if (of.to == kAnyHost) {
          fabric.racks[static_cast<size_t>(of.from)].up *= factor;
        } else {
          fabric.racks[static_cast<size_t>(of.to)].down *= factor;
        }
        break;
      case Kind::kLink:
        change_link(measured, of.from, of.to, factor, fabric);
        break;
      case Kind::kNetwork:
        if (is_processor(of)) {
          change_processor(fabric, of.from, factor);
        } else if (of.to == kAnyHost) {
          fabric.hosts[static_cast<size_t>(of.from)].egress *= factor;
        } else if (of.from == kAnyHost) {
          fabric.hosts[static_cast<size_t>(of.to)].ingress *= factor;
        } else {
          change_route(shared, of.from, of.to, factor, fabric);
        }
        break;
    }
  }
  drop_slow_links(measured, fabric);
  return fabric;
}

std::string rate_changes_text(const Fabric& measured, const RateFactors& before,
                              const RateFactors& after, const std::set<RatedResource>& forgotten) {
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
    add(forgotten.contains(of) ? forgotten_text(measured, of)
                               : name_of(measured, of) + " at its measured rate again");
  }
  return text;
}

}  // namespace q7x2
