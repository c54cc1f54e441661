#include "fabric/routes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace q7x2 {
namespace {

// Rates of undisturbed streams vary by some ten per cent. A pair that is slower by no more than
// that is as fast as its NICs.
constexpr double kPromiseKept = 0.9;

// On a flat network the time of a message differs by so much from pair to pair, because of the
// processors that the two ranks happened to have.
constexpr double kSameTime = 0.25;

std::string arrow(const Fabric& fabric, int from, int to) {
  return fabric.hosts[static_cast<size_t>(from)].name + " -> " +
         fabric.hosts[static_cast<size_t>(to)].name;
}

/// By host: whether two of its ranks are bound to different NUMA nodes.
std::vector<bool> hosts_with_crossings(const Fabric& fabric) {
  std::vector<bool> crosses(fabric.hosts.size());
  std::vector<int> first_bound(fabric.hosts.size(), -1);
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    if (fabric.numa_of(rank) < 0) continue;
    const auto host = static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)]);
    if (first_bound[host] < 0) first_bound[host] = rank;
    if (fabric.crosses_numa(rank, first_bound[host])) crosses[host] = true;
  }
  return crosses;
}

/// The latency of a pair. A message that takes about as long as others says nothing new: within the
/// scatter of the pair's own measurement, or as much as pairs of a flat network differ.
double alpha_of(const Fabric::Pair& pair, const Fabric::Cost& network) {
  const double one_way = network.alpha + 2 * network.overhead;
  const double scatter = std::max(pair.alpha_spread, kSameTime) * one_way;
  const bool is_new = !network.measured || std::abs(pair.alpha - network.alpha) > scatter;
  return pair.alpha > 0 && is_new ? pair.alpha : network.alpha;
}

}  // namespace

Routes::Routes(const Fabric& fabric)
    : host_of_(fabric.host_of),
      memory_(fabric.memory),
      crossing_(fabric.memory),
      network_(fabric.network),
      burst_(fabric.burst) {
  crossing_.alpha *= fabric.interconnect.alpha_factor;
  const std::vector<bool> crosses = hosts_with_crossings(fabric);
  for (size_t i = 0; i < fabric.hosts.size(); ++i) {
    const Fabric::Host& host = fabric.hosts[i];
    const double copies = host.cores * fabric.host_copy_rate(static_cast<int>(i));
    hosts_.push_back({host.rack, add(Kind::kEgress, "egress " + host.name, host.egress),
                      add(Kind::kIngress, "ingress " + host.name, host.ingress),
                      add(Kind::kMemory, "memory " + host.name, copies), kNone});
    if (crosses[i]) {
      hosts_.back().interconnect =
          add(Kind::kInterconnect, "interconnect " + host.name, fabric.interconnect.rate);
    }
  }
  if (std::ranges::find(crosses, true) != crosses.end()) {
    for (int rank = 0; rank < fabric.world_size(); ++rank) numa_of_.push_back(fabric.numa_of(rank));
  }
  for (size_t rack = 0; rack < fabric.racks.size(); ++rack) {
    racks_.push_back(
        {add(Kind::kUp, "up rack " + std::to_string(rack), fabric.racks[rack].up),
         add(Kind::kDown, "down rack " + std::to_string(rack), fabric.racks[rack].down),
         fabric.racks[rack].alpha});
  }
  add_links(fabric);
  add_pairs(fabric);
}

void Routes::add_links(const Fabric& fabric) {
  for (const Fabric::Link& link : fabric.links) {
    for (const auto& [from, to] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
      const int resource = add(Kind::kLink, "link " + arrow(fabric, from, to), link.rate);
      exceptions_.emplace_back(from, to);
      pairs_[hosts_key(from, to)] = {from, to, link.alpha, resource, true};
    }
  }
}

void Routes::add_pairs(const Fabric& fabric) {
  for (const Fabric::Pair& pair : fabric.pairs) {
    // It was measured over the shared network, which hosts with a link of their own do not take.
    const Pair* known = find_pair(pair.from, pair.to);
    if (pair.from == pair.to || known != nullptr) continue;
    const Route ordinary = shared(pair.from, pair.to);
    const double alpha = alpha_of(pair, ordinary.cost);
    const bool is_slow = pair.solo > 0 && pair.solo < kPromiseKept * ordinary.rate;
    const bool is_bounded = pair.window > 0 && alpha > 0;
    if (!is_slow && !is_bounded && alpha == ordinary.cost.alpha) continue;
    const int resource =
        is_slow ? add(Kind::kPair, "pair " + arrow(fabric, pair.from, pair.to), pair.solo) : kNone;
    const int window = is_bounded ? add_window(fabric, pair, alpha) : kNone;
    exceptions_.emplace_back(pair.from, pair.to);
    pairs_[hosts_key(pair.from, pair.to)] = {pair.from, pair.to, alpha, resource, false, window};
  }
}

int Routes::add_window(const Fabric& fabric, const Fabric::Pair& pair, double alpha) {
  const double rate = pair.window / (2 * alpha);
  const int window = add(Kind::kWindow, "connection " + arrow(fabric, pair.from, pair.to), rate);
  resources_.back().burst = pair.window;
  return window;
}

int Routes::add(Kind kind, std::string name, double rate) {
  const bool can_burst = is_network(kind) && rate > 0;
  resources_.push_back({kind, std::move(name), rate_or_unlimited(rate), can_burst ? burst_ : 0});
  return static_cast<int>(resources_.size()) - 1;
}

bool Routes::crosses_numa(int source, int destination) const {
  if (numa_of_.empty()) return false;
  const int a = numa_of_[static_cast<size_t>(source)];
  const int b = numa_of_[static_cast<size_t>(destination)];
  return a >= 0 && b >= 0 && a != b;
}

const Routes::Pair* Routes::find_pair(int from, int to) const {
  if (pairs_.empty()) return nullptr;
  const auto found = pairs_.find(hosts_key(from, to));
  return found == pairs_.end() ? nullptr : &found->second;
}

Routes::Route Routes::finish(Path path, Fabric::Cost cost) const {
  double rate = std::numeric_limits<double>::infinity();
  for (const int resource : path) {
    const Resource& of = resources_[static_cast<size_t>(resource)];
    if (of.kind != Kind::kWindow) rate = std::min(rate, of.rate);
  }
  return {path, cost, rate};
}

Routes::Route Routes::shared(int from, int to) const {
  const Ports& sender = hosts_[static_cast<size_t>(from)];
  const Ports& receiver = hosts_[static_cast<size_t>(to)];
  Path path;
  path.push_back(sender.egress);
  if (sender.rack != receiver.rack) {
    path.push_back(racks_[static_cast<size_t>(sender.rack)].up);
    path.push_back(racks_[static_cast<size_t>(receiver.rack)].down);
  }
  path.push_back(receiver.ingress);
  Fabric::Cost cost = network_;
  cost.alpha = alpha_between(sender.rack, receiver.rack);
  return finish(path, cost);
}

double Routes::ordinary_alpha(const std::vector<bool>& racks) const {
  double farthest = 0;
  double next = 0;
  int count = 0;
  for (size_t rack = 0; rack < racks.size(); ++rack) {
    if (!racks[rack]) continue;
    ++count;
    next = std::max(next, racks_[rack].alpha);
    if (next > farthest) std::swap(next, farthest);
  }
  return network_.alpha + (count > 1 ? farthest + next : 0);
}

double Routes::alpha_between(int from_rack, int to_rack) const {
  if (from_rack == to_rack) return network_.alpha;
  return network_.alpha + racks_[static_cast<size_t>(from_rack)].alpha +
         racks_[static_cast<size_t>(to_rack)].alpha;
}

Routes::Route Routes::between(int source, int destination) const {
  const int from = host_of_[static_cast<size_t>(source)];
  const int to = host_of_[static_cast<size_t>(destination)];
  if (from != to || !crosses_numa(source, destination)) return between_hosts(from, to);
  Path path;
  path.push_back(hosts_[static_cast<size_t>(from)].memory);
  path.push_back(hosts_[static_cast<size_t>(from)].interconnect);
  return finish(path, crossing_);
}

Routes::Route Routes::between_hosts(int from, int to) const {
  if (from == to) {
    Path path;
    path.push_back(hosts_[static_cast<size_t>(from)].memory);
    return finish(path, memory_);
  }
  const Pair* pair = find_pair(from, to);
  if (pair == nullptr) return shared(from, to);
  Fabric::Cost cost = network_;
  cost.alpha = pair->alpha;
  Path path;
  if (!pair->is_link) path = shared(from, to).resources;
  if (pair->resource != kNone) path.push_back(pair->resource);
  if (pair->window != kNone) path.push_back(pair->window);
  return finish(path, cost);
}

uint64_t Routes::key(int source, int destination) const {
  const int from = host_of_[static_cast<size_t>(source)];
  const int to = host_of_[static_cast<size_t>(destination)];
  const bool crosses = from == to && crosses_numa(source, destination);
  return hosts_key(from, to) * 2 + static_cast<uint64_t>(crosses);
}

double Routes::largest_alpha(std::span<const int> ranks) const {
  struct Seen {
    int ranks = 0;
    int numa = -1;  // the node of a bound rank
    bool crosses = false;
  };
  std::vector<Seen> seen(hosts_.size());
  size_t hosts = 0;
  std::vector<bool> has_ranks(racks_.size());
  double largest = 0;
  for (const int rank : ranks) {
    Seen& host = seen[static_cast<size_t>(host_of_[static_cast<size_t>(rank)])];
    if (host.ranks++ == 0) ++hosts;
    const Ports& ports = hosts_[static_cast<size_t>(host_of_[static_cast<size_t>(rank)])];
    has_ranks[static_cast<size_t>(ports.rack)] = true;
    const int numa = numa_of_.empty() ? -1 : numa_of_[static_cast<size_t>(rank)];
    host.crosses |= numa >= 0 && host.numa >= 0 && numa != host.numa;
    if (host.numa < 0) host.numa = numa;
  }
  for (const Seen& host : seen) {
    if (host.ranks > 1) largest = std::max(largest, memory_.alpha);
    if (host.crosses) largest = std::max(largest, crossing_.alpha);
  }
  size_t known = 0;  // number of ordered pairs; all: hosts * (hosts - 1)
  for (const auto& [key, pair] : pairs_) {
    if (seen[static_cast<size_t>(pair.from)].ranks == 0) continue;
    if (seen[static_cast<size_t>(pair.to)].ranks == 0) continue;
    ++known;
    largest = std::max(largest, pair.alpha);
  }
  if (known < hosts * (hosts - 1)) largest = std::max(largest, ordinary_alpha(has_ranks));
  return largest;
}

}  // namespace q7x2
