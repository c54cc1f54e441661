// Earliest edge: trees that grow by the message that arrives first.
//
//   [ h0  h1 ]   5 ms   [ h2  h3 ]     tree of h0:   h1 after  60 us
//     |                   |                          h2 after  60 us, over the link
//     +--- private link --+                          h3 after 120 us, from h2
//
//   collective                steps                    bytes sent by a rank
//   all_reduce                2 x depth of the tree    children x B, each way
//   broadcast, reduce         depth of the tree        children x B
//   all_gather,               depth of the trees       that of n trees, one per rank
//   reduce_scatter
//
// A timetable says when each host and each wire (NIC, cable of a rack, private link) is free. Of
// all messages that a tree could send next, the one is sent that arrives first, and then occupies
// its wires. So latencies count as much as rates, a slow NIC is a leaf, and a far rack is entered
// only as often as that is faster than to pass the data on within it. If several would arrive at
// the same time, the receiver that is nearest to all others is first, and it gets the data from the
// sender that has had it longest. All trees of a collective grow together, on one timetable. In the
// Plan, a rank first serves the child below which the last message arrives.
//
// The parameter is the length of the messages, in KiB, for which the timetable is made. It wins for
// small data on networks with latencies or rates that differ.
// Bhat, Raghavendra and Prasanna, "Efficient collective communication in distributed heterogeneous
// systems", 1999 (earliest completing edge first, with look-ahead).
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/cost/host_distances.h"
#include "plan/cost/network.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

bool goes_down(Collective collective) {
  return collective != Collective::kReduce && collective != Collective::kReduceScatter;
}

bool goes_up(Collective collective) {
  return collective != Collective::kBroadcast && collective != Collective::kAllGather;
}

/// When hosts and wires are free. A fold up a tree is a broadcast backwards in time; if data moves
/// both ways along an edge, the slower way counts.
class Timetable {
 public:
  Timetable(const Fabric& fabric, Collective collective, double bytes)
      : num_hosts_(fabric.hosts.size()) {
    const Routes routes(fabric);
    for (const double rate : known_rates(routes)) seconds_.push_back(bytes / rate);
    wire_free_.resize(seconds_.size());
    host_free_.resize(num_hosts_);
    std::vector<int> rank_on(num_hosts_);
    for (int rank = 0; rank < fabric.world_size(); ++rank) {
      rank_on[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])] = rank;
    }
    for (const int from : rank_on) {
      for (const int to : rank_on) {
        std::vector<Routes::Route> ways;
        if (goes_down(collective)) ways.push_back(routes.between(from, to));
        if (goes_up(collective)) ways.push_back(routes.between(to, from));
        ways_.push_back(std::move(ways));
      }
    }
  }

  size_t num_hosts() const { return num_hosts_; }

  /// When a message arrives, if it is sent as soon as possible after `ready`.
  double arrival(size_t from, size_t to, double ready) const {
    double latest = 0;
    const double begin = std::max(ready, host_free_[from]);
    for (const Routes::Route& way : ways_[from * num_hosts_ + to]) {
      double time = begin + way.cost.overhead;
      double end = time;
      for (const int resource : way.resources) {
        const auto r = static_cast<size_t>(resource);
        time = std::max(time, wire_free_[r]);
        end = std::max(end, time + seconds_[r]);
      }
      latest = std::max(latest, end + way.cost.alpha + way.cost.overhead);
    }
    return latest;
  }

  /// Sends it.
  void take(size_t from, size_t to, double ready) {
    const double begin = std::max(ready, host_free_[from]);
    for (const Routes::Route& way : ways_[from * num_hosts_ + to]) {
      double time = begin + way.cost.overhead;
      host_free_[from] = std::max(host_free_[from], time);
      for (const int resource : way.resources) {
        const auto r = static_cast<size_t>(resource);
        time = std::max(time, wire_free_[r]);
        wire_free_[r] = time + seconds_[r];
      }
    }
  }

 private:
  size_t num_hosts_;
  std::vector<std::vector<Routes::Route>> ways_;  // by host and host
  std::vector<double> seconds_;                   // by resource: of one message
  std::vector<double> wire_free_;                 // by resource
  std::vector<double> host_free_;
};

/// A tree over hosts, and when each of them has the data.
struct HostTree {
  Tree parents;
  std::vector<double> arrival;
};

/// Grows trees on one timetable.
class Growth {
 public:
  Growth(Timetable table, const std::vector<int>& roots) : table_(std::move(table)) {
    const size_t hosts = table_.num_hosts();
    for (size_t from = 0; from < hosts; ++from) {
      double sum = 0;
      for (size_t to = 0; to < hosts; ++to) {
        if (to != from) sum += table_.arrival(from, to, 0);
      }
      remoteness_.push_back(sum);
    }
    for (const int root : roots) {
      trees_.push_back({Tree(hosts, -1), std::vector<double>(hosts, kNever)});
      join(trees_.size() - 1, static_cast<size_t>(root), 0);
    }
  }

  /// Times only get later, so an earlier time of a message is a lower bound, which is computed
  /// again when it is the earliest.
  std::vector<HostTree> grow() {
    while (!next_.empty()) {
      const auto [bound, remoteness, ready, tree, from, to] = next_.top();
      next_.pop();
      HostTree& grown = trees_[tree];
      if (grown.arrival[to] != kNever) continue;
      const double arrival = table_.arrival(from, to, ready);
      if (arrival > bound) {
        next_.emplace(arrival, remoteness, ready, tree, from, to);
        continue;
      }
      table_.take(from, to, ready);
      grown.parents[to] = static_cast<int>(from);
      join(tree, to, arrival);
    }
    return std::move(trees_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  /// When it arrives, how far its receiver is from the others, when its sender had the data, its
  /// tree, its sender and its receiver.
  using Message = std::tuple<double, double, double, size_t, size_t, size_t>;

  void join(size_t tree, size_t host, double time) {
    HostTree& grown = trees_[tree];
    grown.arrival[host] = time;
    for (size_t to = 0; to < table_.num_hosts(); ++to) {
      if (grown.arrival[to] != kNever) continue;
      next_.emplace(table_.arrival(host, to, time), remoteness_[to], time, tree, host, to);
    }
  }

  Timetable table_;
  std::vector<double> remoteness_;  // by host
  std::vector<HostTree> trees_;
  std::priority_queue<Message, std::vector<Message>, std::greater<>> next_;
};

double last_arrival(const HostTree& tree) {
  return *std::ranges::max_element(tree.arrival);
}

/// By host: when the last host at or below it has the data.
std::vector<double> last_below(const HostTree& tree) {
  std::vector<size_t> hosts(tree.arrival.size());
  std::iota(hosts.begin(), hosts.end(), size_t{0});
  std::ranges::sort(hosts, std::greater<>(), [&](size_t host) { return tree.arrival[host]; });
  std::vector<double> last = tree.arrival;
  for (const size_t host : hosts) {
    if (tree.parents[host] < 0) continue;
    double& above = last[static_cast<size_t>(tree.parents[host])];
    above = std::max(above, last[host]);
  }
  return last;
}

/// More hosts than this are not all tried as the root of one tree.
constexpr size_t kMostRoots = 16;

/// The hosts that are nearest to all others.
std::vector<int> central_hosts(const Fabric& fabric) {
  const HostDistances distances(fabric);
  std::vector<int> hosts(fabric.hosts.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  std::ranges::stable_sort(hosts, {}, [&](int host) { return distances.to_all(host); });
  if (hosts.size() > kMostRoots) hosts.resize(kMostRoots);
  return hosts;
}

/// The only tree of a collective without a root has the one from which it is complete first.
std::vector<HostTree> host_trees(const ScheduleRequest& request) {
  constexpr double kKiB = 1024;
  const Fabric& fabric = *request.fabric;
  const Timetable table(fabric, request.collective, kKiB * request.parameter);
  if (is_rooted(request.collective)) {
    return Growth(table, {fabric.host_of[static_cast<size_t>(request.root)]}).grow();
  }
  if (request.collective != Collective::kAllReduce) return Growth(table, fabric.host_of).grow();
  std::vector<HostTree> best;
  for (const int root : central_hosts(fabric)) {
    std::vector<HostTree> trees = Growth(table, {root}).grow();
    if (best.empty() || last_arrival(trees[0]) < last_arrival(best[0])) best = std::move(trees);
  }
  return best;
}

/// A tree's root, or a rank of each other host, speaks for its host.
std::vector<int> speakers(const ScheduleRequest& request, int tree) {
  const Fabric& fabric = *request.fabric;
  std::vector<int> speaker(fabric.hosts.size());
  for (int rank = fabric.world_size() - 1; rank >= 0; --rank) {
    speaker[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])] = rank;
  }
  const bool has_root = request.collective != Collective::kAllReduce;
  const int root = is_rooted(request.collective) ? request.root : tree;
  if (has_root) speaker[static_cast<size_t>(fabric.host_of[static_cast<size_t>(root)])] = root;
  return speaker;
}

Schedule generate(const ScheduleRequest& request) {
  std::vector<Tree> trees;
  std::vector<std::vector<double>> urgency;
  for (const HostTree& hosts : host_trees(request)) {
    const std::vector<int> speaker = speakers(request, static_cast<int>(trees.size()));
    const std::vector<double> last = last_below(hosts);
    std::vector<double> urgent(static_cast<size_t>(request.world_size));
    for (size_t host = 0; host < speaker.size(); ++host) {
      urgent[static_cast<size_t>(speaker[host])] = last[host];
    }
    trees.push_back(tree_of_ranks(hosts.parents, speaker, *request.fabric));
    urgency.push_back(std::move(urgent));
  }
  return forest_schedule(request, "earliest_edge", branches_of(std::move(trees), urgency));
}

constexpr int kMaxHosts = 64;
/// The time for n trees grows with the cube of n.
constexpr int kMaxTrees = 16;

/// The lengths of messages, in KiB. Nothing if hosts are equally near each other, or racks are.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return {};
  const Fabric& fabric = *request.fabric;
  if (fabric.one_host() || fabric.hosts.size() > kMaxHosts) return {};
  const bool has_far_racks =
      std::ranges::any_of(fabric.racks, [](const Fabric::Rack& rack) { return rack.alpha > 0; });
  if (!has_far_racks && !HostDistances::may_differ(fabric)) return {};
  return {1, 64};
}

Generator entry(Collective collective, int max_world_size) {
  return {.name = "earliest_edge",
          .collective = collective,
          .generate = generate,
          .max_world_size = max_world_size,
          .parameters = parameters};
}

}  // namespace

std::vector<Generator> earliest_edge_generators() {
  constexpr int kMaxRanks = 1 << 15;
  return {entry(Collective::kAllReduce, kMaxRanks), entry(Collective::kBroadcast, kMaxRanks),
          entry(Collective::kReduce, kMaxRanks), entry(Collective::kAllGather, kMaxTrees),
          entry(Collective::kReduceScatter, kMaxTrees)};
}

}  // namespace q7x2
