// Blink: the data is split over several spanning trees, which are packed so that every link of the
// network is busy until the end.
//
//   host 0 has a private link of 100 to each         tree 0, weight 9      trees 1, 2, 3, weight 1
//   other host; all share a switch of 20:
//                                                        0                    0           0
//         1 ---- 0 ---- 2                              / | \                /   \        ...
//                |                                    1  2  3              1     2
//                3                                                         |
//                                                                          3
//
//   collective           steps                    bytes through a resource, as a share of B
//   all_reduce           2 x depth of the trees   its trees' weights, at most its rate / throughput
//   broadcast, reduce    depth of the trees       the same, one way
//
// The graph has an edge for each pair of hosts, with all resources on the route between them: NICs,
// cables of racks, private links. The fastest way to spread data through it is the best packing of
// spanning trees, a linear programme. Multiplicative weights solve it: every resource has a price
// that grows by a factor with each tree that uses it, and the next tree is the cheapest one at
// these prices. Here the data has W equal shares. Each share gets a tree. Then each share in turn
// gives its tree up and takes the cheapest one, in which each host
// then moves to its cheapest parent, and the shares with the same tree become a part of
// that weight. The smallest W that comes close to the best is used, for few trees and long
// messages.
//
// It wins if the network is not a plain switch: private links, racks, NICs of unequal speed. In
// each tree one rank of a host has the other ranks of this host as its children; this rank changes
// from tree to tree. Prices are products of numbers that all ranks know, computed without a
// mathematical library, so all ranks construct the same trees.
// Wang et al., "Blink: fast and generic collectives for distributed ML", MLSys 2020; Garg and
// Könemann, "Faster and simpler algorithms for multicommodity flow and other fractional packing
// problems", 2007.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/tree_packing.h"
#include "plan/cost/host_distances.h"
#include "plan/cost/network.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

struct WeightedTrees {
  std::vector<Tree> trees;  ///< over ranks
  std::vector<uint32_t> weights;
};

/// In each tree a host is represented by one of its ranks, in turn, and its other ranks are the
/// children of that one. The root of a rooted collective represents its host in all trees.
Tree tree_of_ranks(const Tree& hosts, const Fabric& fabric, size_t turn, int root) {
  std::vector<std::vector<int>> ranks_on(fabric.hosts.size());
  for (int rank = 0; rank < fabric.world_size(); ++rank) {
    ranks_on[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])].push_back(rank);
  }
  std::vector<int> speaker;
  for (const std::vector<int>& ranks : ranks_on) {
    const bool has_root = std::ranges::find(ranks, root) != ranks.end();
    speaker.push_back(has_root ? root : ranks[turn % ranks.size()]);
  }
  return tree_of_ranks(hosts, speaker, fabric);
}

constexpr int kMaxHosts = 64;
/// More hosts than this get fewer shares, because the time for a packing grows with the square of
/// the number of hosts.
constexpr size_t kManyHosts = 16;
constexpr size_t kShares[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr size_t kSharesForMany = 8;
/// Fewer shares are preferred unless more of them are faster by at least this.
constexpr double kWorthIt = 0.02;

WeightedTrees weigh(const std::vector<Tree>& host_trees, const Fabric& fabric, int root) {
  std::map<Tree, uint32_t> weights;
  for (const Tree& tree : host_trees) ++weights[tree];
  WeightedTrees result;
  for (const auto& [tree, weight] : weights) {
    result.trees.push_back(tree_of_ranks(tree, fabric, result.trees.size(), root));
    result.weights.push_back(weight);
  }
  return result;
}

/// Number of scratch blocks that the busiest rank needs for what its children send, in slices. A
/// block is as long as the heaviest part.
double scratch(const WeightedTrees& packed) {
  std::vector<uint32_t> children(packed.trees.front().size());
  for (const Tree& tree : packed.trees) {
    for (const int parent : tree) {
      if (parent >= 0) ++children[static_cast<size_t>(parent)];
    }
  }
  const auto total = std::accumulate(packed.weights.begin(), packed.weights.end(), 0.0);
  return *std::ranges::max_element(children) * *std::ranges::max_element(packed.weights) / total;
}

/// For few hosts: the given order, the hosts that are near all others first, and both reversed.
std::vector<std::vector<int>> orders(const Fabric& fabric) {
  std::vector<int> hosts(fabric.hosts.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  std::vector<std::vector<int>> all{hosts};
  if (hosts.size() > kManyHosts) return all;
  all.emplace_back(hosts.rbegin(), hosts.rend());
  const HostDistances distances(fabric);
  std::ranges::stable_sort(hosts, {}, [&](int host) { return distances.to_all(host); });
  if (hosts == all[0]) return all;
  all.push_back(hosts);
  all.emplace_back(hosts.rbegin(), hosts.rend());
  return all;
}

WeightedTrees pack_trees(const ScheduleRequest& request) {
  const Fabric& fabric = *request.fabric;
  std::vector<Packing> packings;
  for (std::vector<int>& order : orders(fabric)) {
    packings.emplace_back(fabric,
                          Directions{.up = request.collective != Collective::kBroadcast,
                                     .down = request.collective != Collective::kReduce},
                          std::move(order));
  }
  const int root = request.root < 0 ? -1 : fabric.host_of[static_cast<size_t>(request.root)];
  WeightedTrees best;
  double best_time = std::numeric_limits<double>::infinity();
  for (const size_t shares : kShares) {
    if (fabric.hosts.size() > kManyHosts && shares > kSharesForMany) break;
    const double least_worth_it = best_time * (1 - kWorthIt);
    std::pair<double, double> first{least_worth_it, 0};  // time and latency
    for (Packing& packing : packings) {
      const std::vector<Tree> trees = packing.pack(shares, root);
      const double time = packing.last_finish() / static_cast<double>(shares);
      const std::pair found{time, packing.last_latency()};
      if (time >= least_worth_it || found >= first) continue;
      WeightedTrees packed = weigh(trees, fabric, request.root);
      if (scratch(packed) > kMaxScratchSlices * request.world_size) continue;
      best = std::move(packed);
      best_time = time;
      first = found;
    }
  }
  return best;
}

Schedule generate(const ScheduleRequest& request) {
  WeightedTrees packed = pack_trees(request);
  return forest_schedule(request, "blink", branches_of(std::move(packed.trees)), packed.weights);
}

/// Whether there is one switch with equal hosts, and all pairs of hosts are equally good.
bool is_plain(const Fabric& fabric) {
  if (fabric.racks.size() > 1) return false;
  if (!HostDistances::may_differ(fabric)) return true;
  const HostDistances distances(fabric);
  return !distances.pairs_differ() && !distances.nics_differ();
}

/// Has no parameter. Offers nothing on a plain network.
std::vector<int> parameters(const ScheduleRequest& request) {
  if (request.fabric == nullptr) return {};
  const Fabric& fabric = *request.fabric;
  if (fabric.one_host() || fabric.hosts.size() > kMaxHosts) return {};
  return is_plain(fabric) ? std::vector<int>{} : std::vector<int>{0};
}

Generator entry(Collective collective) {
  return {
      .name = "blink", .collective = collective, .generate = generate, .parameters = parameters};
}

}  // namespace

std::vector<Generator> blink_generators() {
  return {entry(Collective::kAllReduce), entry(Collective::kBroadcast), entry(Collective::kReduce)};
}

}  // namespace q7x2
