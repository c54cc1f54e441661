#include "fabric/infer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "fabric/core_rates.h"
#include "fabric/linkage.h"
#include "fabric/near_groups.h"
#include "fabric/scatter.h"

namespace q7x2 {
namespace {

// Rates of undisturbed flows vary by some ten per cent, on busy machines by half.
constexpr double kSlow = 0.5;
// Flows through a cable that is shared 2:1 have half of their NICs' rate. So the line between them
// and undisturbed flows lies well above a half: the average of several flows varies less than one.
constexpr double kShared = 0.65;
// A NIC's rate is that of its fastest flows: single flows, so the line is a little higher.
constexpr double kHeldBack = 0.7;
// Below this ease a flow counts as held up by its rack's cable.
constexpr double kHeldUp = 0.75;

using Flow = Measurements::Flow;

/// The rate of a NIC: of the flows through it, those that nothing else held up.
double nic_rate(std::vector<double> rates) {
  if (rates.empty()) return 0;
  const double best = *std::max_element(rates.begin(), rates.end());
  std::erase_if(rates, [best](double rate) { return rate < kHeldBack * best; });
  return median(std::move(rates));
}

void set_nic_rates(const std::vector<Flow>& flows, Fabric& fabric) {
  std::vector<std::vector<double>> out(fabric.hosts.size());
  std::vector<std::vector<double>> in(fabric.hosts.size());
  for (const Flow& flow : flows) {
    out[static_cast<size_t>(flow.from)].push_back(flow.rate);
    in[static_cast<size_t>(flow.to)].push_back(flow.rate);
  }
  for (size_t host = 0; host < fabric.hosts.size(); ++host) {
    fabric.hosts[host].egress = nic_rate(std::move(out[host]));
    fabric.hosts[host].ingress = nic_rate(std::move(in[host]));
  }
  std::vector<double*> rates;
  for (Fabric::Host& host : fabric.hosts) rates.insert(rates.end(), {&host.egress, &host.ingress});
  even_out(std::move(rates));
}

// A receiver that is kept from running hides a burst, so the upper quartile of the flows counts.
// Less may be the first window of a stream, found at once by a receiver that was kept from looking.
constexpr double kLeastBurst = 64 * 1024;

void set_burst(const std::vector<Flow>& flows, Fabric& fabric) {
  std::vector<double> bursts;
  for (const Flow& flow : flows) bursts.push_back(flow.burst);
  if (bursts.empty()) return;
  const auto upper = bursts.begin() + static_cast<std::ptrdiff_t>(bursts.size() * 3 / 4);
  std::nth_element(bursts.begin(), upper, bursts.end());
  if (*upper > kLeastBurst) fabric.burst = *upper;
}

double ease_of(const Flow& flow, const Fabric& fabric) {
  const double nics = std::min(fabric.hosts[static_cast<size_t>(flow.from)].egress,
                               fabric.hosts[static_cast<size_t>(flow.to)].ingress);
  return nics > 0 ? flow.rate / nics : 1;
}

/// Groups of hosts that have a cable in common, by host.
std::vector<int> cable_groups(const std::vector<Flow>& flows, const Fabric& fabric) {
  Linkage linkage(fabric.hosts.size());
  for (const Flow& flow : flows) linkage.add(flow.from, flow.to, ease_of(flow, fabric));
  return linkage.joined(kShared);
}

/// Hosts of one rack have both in common: the cable, and the place.
void set_racks(const std::vector<int>& group, const std::vector<int>& near, Fabric& fabric) {
  std::map<std::pair<int, int>, int> rack_of_group;
  for (size_t host = 0; host < fabric.hosts.size(); ++host) {
    const int next = static_cast<int>(rack_of_group.size());
    fabric.hosts[host].rack =
        rack_of_group.try_emplace({group[host], near[host]}, next).first->second;
  }
  fabric.racks.clear();
  for (size_t rack = 0; rack < rack_of_group.size(); ++rack) {
    fabric.racks.push_back({.name = "rack " + std::to_string(rack)});
  }
}

/// `group`: of each host, those that have a cable in common. A flow to a far host of the same group
/// is no slower than its NICs, apart from what its distance costs at the start.
void set_cables(const std::vector<std::vector<Flow>>& rounds, const std::vector<int>& group,
                Fabric& fabric) {
  struct Sums {
    std::vector<double> held_up;
    double rate() const { return held_up.empty() ? 0 : median(held_up); }
  };
  std::vector<Sums> up(fabric.racks.size());
  std::vector<Sums> down(fabric.racks.size());
  for (const auto& round : rounds) {
    struct Crossing {
      double rate = 0;
      bool held_up = false;
    };
    std::map<int, Crossing> leaving;
    std::map<int, Crossing> entering;
    for (const Flow& flow : round) {
      const int from = fabric.hosts[static_cast<size_t>(flow.from)].rack;
      const int to = fabric.hosts[static_cast<size_t>(flow.to)].rack;
      if (from == to || flow.wire != Measurements::kShared) continue;
      for (Crossing* crossing : {&leaving[from], &entering[to]}) {
        crossing->rate += flow.rate;
        crossing->held_up |=
            group[static_cast<size_t>(flow.from)] != group[static_cast<size_t>(flow.to)] &&
            ease_of(flow, fabric) < kHeldUp;
      }
    }
    const auto add = [](const std::map<int, Crossing>& crossings, std::vector<Sums>& sums) {
      for (const auto& [rack, crossing] : crossings) {
        Sums& sum = sums[static_cast<size_t>(rack)];
        if (crossing.held_up) sum.held_up.push_back(crossing.rate);
      }
    };
    add(leaving, up);
    add(entering, down);
  }
  for (size_t rack = 0; rack < fabric.racks.size(); ++rack) {
    fabric.racks[rack].up = up[rack].rate();
    fabric.racks[rack].down = down[rack].rate();
  }
  std::vector<double*> rates;
  for (Fabric::Rack& rack : fabric.racks) rates.insert(rates.end(), {&rack.up, &rack.down});
  even_out(std::move(rates));
}

// A ping through shared memory is a few cache lines and nothing else. A collective also looks at
// its Plan and at UCX between two messages: what that takes at least, in seconds.
constexpr double kLeastAlpha = 0.3e-6;
constexpr double kLeastOverhead = 0.3e-6;

Fabric::Cost cost_of(double round_trip, double overhead) {
  // A one-way trip is alpha and an overhead at each end. Where sender and receiver share a core the
  // measured overhead is both, and may seem to be all of it.
  const double one_way = round_trip / 2;
  const double each = std::min(overhead, one_way * 3 / 8);
  return {one_way - 2 * each, each, true};
}

/// The alpha of one way through the network. Every way counts with the overhead of the network
/// instead of its own, so only the sum of both is sure to be right.
double alpha_of(const Measurements::Ping& ping, const Fabric::Cost& network) {
  return cost_of(ping.round_trip, network.overhead).alpha;
}

/// `near`: the group of each host.
void set_costs(const std::vector<Measurements::Ping>& pings, const std::vector<int>& near,
               Fabric& fabric) {
  const auto set = [&](bool inside, bool crossing, Fabric::Cost& cost) {
    std::vector<double> round_trips;
    std::vector<double> overheads;
    for (const auto& ping : pings) {
      if ((ping.a == ping.b) != inside || ping.wire != Measurements::kShared) continue;
      if (ping.crosses_numa != crossing) continue;
      if (near[static_cast<size_t>(ping.a)] != near[static_cast<size_t>(ping.b)]) continue;
      round_trips.push_back(ping.round_trip);
      if (!is_far(ping.round_trip)) overheads.push_back(ping.overhead);
    }
    if (overheads.empty()) overheads.push_back(cost.overhead);  // the default
    if (!round_trips.empty()) cost = cost_of(median(round_trips), median(overheads));
    if (inside && cost.measured) {
      cost.alpha = std::max(cost.alpha, kLeastAlpha);
      cost.overhead = std::max(cost.overhead, kLeastOverhead);
    }
  };
  set(true, false, fabric.memory);
  set(false, false, fabric.network);
  Fabric::Cost crossing;
  set(true, true, crossing);
  if (!crossing.measured) return;
  // Without a ping inside a node, those between nodes stand for all of the host.
  if (!fabric.memory.measured) fabric.memory = crossing;
  fabric.interconnect.alpha_factor = std::max(1.0, crossing.alpha / fabric.memory.alpha);
  fabric.interconnect.measured = true;
}

/// What comes on top of the network's latency for whoever leaves a rack or enters it.
void set_distances(const std::vector<Measurements::Ping>& pings, Fabric& fabric) {
  std::vector<FarPing> far;
  for (const auto& ping : pings) {
    if (ping.wire != Measurements::kShared) continue;
    const int a = fabric.hosts[static_cast<size_t>(ping.a)].rack;
    const int b = fabric.hosts[static_cast<size_t>(ping.b)].rack;
    if (a != b) far.push_back({a, b, alpha_of(ping, fabric.network)});
  }
  const std::vector<double> distances =
      distances_from_centre(fabric.racks.size(), far, fabric.network.alpha);
  for (size_t rack = 0; rack < distances.size(); ++rack) fabric.racks[rack].alpha = distances[rack];
}

void set_pairs(const Measurements& measured, const std::vector<Flow>& flows, Fabric& fabric) {
  std::map<HostPair, Fabric::Pair> pairs;
  const auto pair = [&pairs](int from, int to) -> Fabric::Pair& {
    Fabric::Pair& found = pairs[{from, to}];
    found.from = from;
    found.to = to;
    return found;
  };
  for (const Flow& flow : flows) {
    pair(flow.from, flow.to).rate = flow.rate;
    pair(flow.from, flow.to).rate_spread = flow.spread;
    pair(flow.from, flow.to).window = flow.window;
  }
  for (const Flow& flow : measured.solo) pair(flow.from, flow.to).solo = flow.rate;
  for (const auto& ping : measured.pings) {
    if (ping.a == ping.b || ping.wire != Measurements::kShared) continue;
    for (const auto& [from, to] : {HostPair(ping.a, ping.b), HostPair(ping.b, ping.a)}) {
      pair(from, to).alpha = alpha_of(ping, fabric.network);
      pair(from, to).alpha_spread = ping.spread;
    }
  }
  for (const auto& [hosts, measurement] : pairs) fabric.pairs.push_back(measurement);
}

/// Few of the pairs between two far groups have streamed. The others get the windows of those.
void set_windows(Fabric& fabric) {
  const auto racks_of = [&](const Fabric::Pair& pair) {
    return std::pair(fabric.hosts[static_cast<size_t>(pair.from)].rack,
                     fabric.hosts[static_cast<size_t>(pair.to)].rack);
  };
  std::map<std::pair<int, int>, std::vector<double>> measured;  // by racks
  for (const Fabric::Pair& pair : fabric.pairs) {
    if (pair.rate > 0) measured[racks_of(pair)].push_back(pair.window);
  }
  std::vector<double*> windows;
  for (Fabric::Pair& pair : fabric.pairs) {
    const auto known = measured.find(racks_of(pair));
    if (pair.rate == 0 && known != measured.end()) pair.window = median(known->second);
    windows.push_back(&pair.window);
  }
  even_out(std::move(windows));
}

void set_links(const Measurements& measured, Fabric& fabric) {
  struct Wire {
    std::vector<double> rates;
    std::vector<double> alphas;
  };
  std::map<std::pair<int, HostPair>, Wire> wires;
  for (const auto& round : measured.rounds) {
    for (const Flow& flow : round) {
      if (flow.wire == Measurements::kShared) continue;
      wires[{flow.wire, unordered(flow.from, flow.to)}].rates.push_back(flow.rate);
    }
  }
  for (const auto& ping : measured.pings) {
    if (ping.wire == Measurements::kShared) continue;
    wires[{ping.wire, unordered(ping.a, ping.b)}].alphas.push_back(alpha_of(ping, fabric.network));
  }
  for (const auto& [place, wire] : wires) {
    const auto [a, b] = place.second;
    // Both ways, or it is no link; and only one that is faster than the shared network is worth it.
    const auto shared = [&](int from, int to) {
      return std::min(fabric.hosts[static_cast<size_t>(from)].egress,
                      fabric.hosts[static_cast<size_t>(to)].ingress);
    };
    if (wire.rates.size() >= 2 && median(wire.rates) > std::max(shared(a, b), shared(b, a))) {
      fabric.links.push_back({a, b, median(wire.rates), median(wire.alphas)});
    }
  }
  std::vector<double*> rates;
  for (Fabric::Link& link : fabric.links) rates.push_back(&link.rate);
  even_out(std::move(rates));
}

/// What a flow of a round may have of its racks' cables, all flows of the round sharing them.
double share_of_cables(const std::vector<Flow>& round, const Flow& flow, const Fabric& fabric) {
  const auto rack_of = [&](int host) { return fabric.hosts[static_cast<size_t>(host)].rack; };
  const int from = rack_of(flow.from);
  const int to = rack_of(flow.to);
  if (from == to) return std::numeric_limits<double>::infinity();
  double leaving = 0;
  double entering = 0;
  for (const Flow& other : round) {
    if (other.wire != Measurements::kShared || rack_of(other.from) == rack_of(other.to)) continue;
    leaving += rack_of(other.from) == from ? 1 : 0;
    entering += rack_of(other.to) == to ? 1 : 0;
  }
  return std::min(rate_or_unlimited(fabric.racks[static_cast<size_t>(from)].up) / leaving,
                  rate_or_unlimited(fabric.racks[static_cast<size_t>(to)].down) / entering);
}

}  // namespace

std::vector<std::pair<int, int>> slow_pairs(const Measurements& measured, size_t most) {
  const Fabric fabric = infer(measured);
  std::map<HostPair, double> slow;
  for (const auto& round : measured.rounds) {
    for (const Flow& flow : round) {
      if (flow.wire != Measurements::kShared) continue;
      const double nics = std::min(fabric.hosts[static_cast<size_t>(flow.from)].egress,
                                   fabric.hosts[static_cast<size_t>(flow.to)].ingress);
      const double ease = flow.rate / std::min(nics, share_of_cables(round, flow, fabric));
      if (!(ease < kSlow)) continue;
      double& least = slow.try_emplace(unordered(flow.from, flow.to), ease).first->second;
      least = std::min(least, ease);
    }
  }
  std::vector<std::pair<double, HostPair>> order;
  for (const auto& [pair, ease] : slow) order.emplace_back(ease, pair);
  std::ranges::sort(order);
  std::vector<std::pair<int, int>> pairs;
  for (const auto& [ease, pair] : order) {
    if (pairs.size() < most) pairs.push_back(pair);
  }
  return pairs;
}

Fabric infer(const Measurements& measured) {
  Fabric fabric;
  fabric.host_of = measured.host_of;
  fabric.racks.emplace_back();
  for (const auto& host : measured.hosts) {
    fabric.hosts.push_back(
        {.name = host.name, .key = host.key, .cores = host.cores, .hardware = host.hardware});
  }
  if (!measured.hosts.empty()) set_core_rates(measured.hosts, fabric);

  std::vector<Flow> flows;
  for (const auto& round : measured.rounds) {
    std::copy_if(round.begin(), round.end(), std::back_inserter(flows),
                 [](const Flow& flow) { return flow.wire == Measurements::kShared; });
  }
  const std::vector<int> near = near_groups(fabric.hosts.size(), measured.pings);
  set_costs(measured.pings, near, fabric);
  set_nic_rates(flows, fabric);
  set_burst(flows, fabric);
  // Without streams no cable is known, so hosts are apart by their places alone.
  const std::vector<int> group =
      flows.empty() ? std::vector<int>(fabric.hosts.size()) : cable_groups(flows, fabric);
  const bool has_far = std::ranges::find_if(near, [](int site) { return site > 0; }) != near.end();
  if (!flows.empty() || has_far) set_racks(group, near, fabric);
  if (has_far) set_distances(measured.pings, fabric);
  if (fabric.racks.size() > 1) set_cables(measured.rounds, group, fabric);
  set_pairs(measured, flows, fabric);
  set_windows(fabric);
  set_links(measured, fabric);
  fabric.validate();
  return fabric;
}

Fabric infer_latencies(const Measurements& measured) {
  Fabric fabric = infer(measured);
  const Fabric assumed = Fabric::assumed(measured.host_of);
  for (size_t host = 0; host < fabric.hosts.size(); ++host) {
    fabric.hosts[host].egress = assumed.hosts[host].egress;
    fabric.hosts[host].ingress = assumed.hosts[host].ingress;
  }
  return fabric;
}

}  // namespace q7x2
