// Aggregator-k: k of the ranks reduce for all; each reduces 1/k of the data.
//
//   k = 2 of 4:   part 0: 1, 2, 3 -> 0, which folds      then 0 -> 1, 2, 3
//                 part 1: 0, 1, 3 -> 2, which folds      then 2 -> 0, 1, 3
//
//   collective    steps   bytes sent by a rank      and by an aggregator
//   all_reduce    2       B                         B (k-1)/k + (n-1) B/k
//   reduce        2       B                         B (k-1)/k + B/k to the root
//
// k = 1 is the central parameter server; k = n is a server sharded over all ranks, which is SRA.
// Values in between relieve ranks with a slow link: the aggregators are the ranks with the fastest
// hosts; among equally fast hosts, each gets one aggregator before any gets a second. Each
// contribution is folded in rank order and rounded once. So it suits floats of 16 and 8 bits, and
// all ranks end bit-identical.
// Li et al., "Scaling distributed machine learning with the parameter server", 2014. In Sapio et
// al., "Scaling distributed machine learning with in-network aggregation", 2021, the aggregators
// are outside the group.
#include <algorithm>
#include <memory>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/cost/host_distances.h"
#include "plan/cost/network.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

std::vector<int> aggregators(const ScheduleRequest& request) {
  std::vector<int> ranks = near_order(request).ranks();
  if (request.fabric != nullptr) {
    const Fabric& fabric = *request.fabric;
    std::vector<int> place_on_host(ranks.size());
    std::vector<int> ranks_of_host(fabric.hosts.size());
    for (const int rank : ranks) {
      const int host = fabric.host_of[static_cast<size_t>(rank)];
      place_on_host[static_cast<size_t>(rank)] = ranks_of_host[static_cast<size_t>(host)]++;
    }
    // Among equally fast hosts, prefers those without a slow pair.
    std::vector<double> distance(fabric.hosts.size());
    if (HostDistances::may_differ(fabric)) {
      const HostDistances distances(fabric);
      for (int host = 0; host < distances.hosts(); ++host) {
        distance[static_cast<size_t>(host)] = distances.to_all(host);
      }
    }
    std::ranges::stable_sort(ranks, {}, [&](int rank) {
      const int host = fabric.host_of[static_cast<size_t>(rank)];
      return std::tuple(-rate_of_host(fabric, host), distance[static_cast<size_t>(host)],
                        place_on_host[static_cast<size_t>(rank)]);
    });
  }
  ranks.resize(static_cast<size_t>(std::clamp(request.parameter, 1, request.world_size)));
  return ranks;
}

/// A star around each centre.
Branches stars(const ScheduleRequest& request, const std::vector<int>& centres) {
  return [orders = std::make_shared<const NearOrders>(request), centres](int part, int rank) {
    const int centre = centres[static_cast<size_t>(part)];
    if (rank != centre) return Branch{centre, {}};
    return star_branch(orders->from(centre).ranks(), 0);
  };
}

Schedule all_reduce(const ScheduleRequest& request) {
  const std::vector<int> centres = aggregators(request);
  const auto parts = static_cast<int>(centres.size());
  Schedule schedule =
      bare_forest_schedule(request, "aggregator", stars(request, centres), equal_parts(parts));
  schedule.set_rounds_once();
  if (parts == request.world_size && std::ranges::is_sorted(centres)) {
    schedule.set_turn({.ranks = near_turn(request), .messages_of_parts = true});
  }
  const std::vector<Round> up{
      {.crosses = {{team_of(schedule.contract().contributors), team_of(centres), 1, 1.0 / parts}},
       .folds = true}};
  schedule.add_round(up[0]);
  schedule.add_round(backwards(up, request.world_size)[0]);
  return schedule;
}

Schedule reduce(const ScheduleRequest& request) {
  const std::vector<int> centres = aggregators(request);
  const int root = request.root;
  const auto parts = static_cast<int>(centres.size());
  Schedule schedule(request, "aggregator", equal_parts(parts));
  schedule.set_rounds_once();
  schedule.add_round(
      {.crosses = {{team_of(schedule.contract().contributors), team_of(centres), 1, 1.0 / parts}},
       .folds = true});
  schedule.add_round({.crosses = {{team_of(centres), team_of({root}), 1, 1.0 / parts}},
                      .contributions = static_cast<double>(request.world_size)});
  schedule.set_program(
      [centres, root, branches = stars(request, centres)](PlanBuilder& b, int rank) {
        Forest forest(b);
        std::vector<Branch> up;
        std::vector<Branch> to_the_root(centres.size());
        for (size_t i = 0; i < centres.size(); ++i) {
          up.push_back(branches(static_cast<int>(i), rank));
          if (centres[i] == root) continue;
          if (rank == root) to_the_root[i].parent = centres[i];
          if (rank == centres[i]) to_the_root[i].children = {root};
        }
        forest.reduce_up(up);
        forest.broadcast_down(to_the_root);
      });
  return schedule;
}

/// The powers of two, and the number of ranks.
std::vector<int> parameters(const ScheduleRequest& request) {
  std::vector<int> counts;
  for (int k = 1; k < request.world_size; k *= 2) counts.push_back(k);
  counts.push_back(request.world_size);
  return counts;
}

constexpr int kMaxRanks = Plan::kMaxMessages / 2;

}  // namespace

std::vector<Generator> aggregator_generators() {
  return {
      {.name = "aggregator",
       .collective = Collective::kAllReduce,
       .generate = all_reduce,
       .rounds_once = true,
       .max_world_size = kMaxRanks,
       .parameters = parameters},
      {.name = "aggregator",
       .collective = Collective::kReduce,
       .generate = reduce,
       .rounds_once = true,
       .max_world_size = kMaxRanks,
       .parameters = parameters},
  };
}

}  // namespace q7x2
