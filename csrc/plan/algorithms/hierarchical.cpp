// Hierarchical: fold within groups of near ranks first, then across the groups, then pass the
// result on within the groups.
//
//   rack 0: 0 1 2 3     part 0:  0, 1, 2, 3 -> 0 \            0 -> 1, 2, 3    In part 1, the ranks
//                                                  0 <-> 4                    1 and 5 exchange, and
//   rack 1: 4 5 6 7              4, 5, 6, 7 -> 4 /            4 -> 5, 6, 7    so on: k parts.
//
// Groups are hosts, and racks of hosts: a group of groups has one leader per part, which is one of
// its groups' leaders. The parameter k is the number of leaders of a group; in groups smaller than
// k a leader leads several parts.
//
//   k     within groups                      across g groups         bytes through a group's cable
//   1     tree up, tree down (one part)      recursive doubling      B log2 g, each way
//   all   each rank folds its share (SRA)    g = 2: exchange, if     B, each way
//                                            owners are not needed
//                                            else: each share has    2 B (g-1)/g, each way
//                                            g parts, and each group is the root for one of them
//
// With k = all, a rank of a group of m moves 2 B (m-1)/m within it and about 2 B/m across. So the
// scarce resource, the cable between racks or the NIC of a host, carries as little as possible. k =
// 1 has the fewest slow steps, for small data. The other collectives use the same trees: broadcast
// and reduce use one tree, all_gather and reduce_scatter one per rank, and each part crosses each
// cable once. A barrier gathers within groups, disseminates across, releases within.
// Thakur, Rabenseifner and Gropp, 2005, for SMP clusters; Cho et al., "BlueConnect: decomposing
// all-reduce for deep learning on heterogeneous network hierarchy", 2019, for k = all.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/hierarchy.h"
#include "plan/algorithms/order.h"
#include "plan/algorithms/recursive_doubling.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// How all_reduce divides the data: one part per choice of leaders.
struct Division {
  Division(const Hierarchy& hierarchy, int leaders, bool wants_owners = false) {
    const bool is_pair = hierarchy.largest_group(hierarchy.top()) == 2;
    exchanges_across = leaders == 1 || (is_pair && !wants_owners);
    for (int level = 0; level < hierarchy.top(); ++level) {
      choices.push_back(std::min(leaders, hierarchy.largest_group(level)));
    }
    choices.push_back(exchanges_across ? 1 : hierarchy.largest_group(hierarchy.top()));
    for (const int count : choices) parts *= count;
  }

  std::vector<int> path(int part) const {
    std::vector<int> path;
    for (const int count : choices) {
      path.push_back(part % count);
      part /= count;
    }
    return path;
  }

  /// at the top: all leaders fold; otherwise one does, and sends the result
  bool exchanges_across;
  std::vector<int> choices;  ///< number of possible leaders, by level
  int parts = 1;
};

/// Merges the rounds of several teams that work at the same time.
void merge(std::vector<Round>& rounds, std::vector<Round> more) {
  for (size_t i = 0; i < more.size(); ++i) {
    if (i == rounds.size())
      rounds.push_back({.folds = more[i].folds, .contributions = more[i].contributions});
    rounds[i].edges.insert(rounds[i].edges.end(), more[i].edges.begin(), more[i].edges.end());
  }
}

struct AllReduce {
  explicit AllReduce(const ScheduleRequest& request)
      : hierarchy(request),
        division(hierarchy, request.parameter, request.wants_owners),
        shape(request.parameter == 1 ? TreeShape::kBinomial : TreeShape::kStar),
        levels(hierarchy.num_levels() - (division.exchanges_across ? 1 : 0)) {}

  Branch branch(int part, int rank) const {
    return hierarchy.branch(rank, division.path(part), levels, shape);
  }
  std::vector<int> top_leaders(int part) const {
    return hierarchy.leaders(hierarchy.top(), 0, division.path(part));
  }

  Hierarchy hierarchy;
  Division division;
  TreeShape shape;
  int levels;  ///< levels that the trees have
};

std::vector<std::vector<int>> paths(const Division& division) {
  std::vector<std::vector<int>> all;
  for (int part = 0; part < division.parts; ++part) all.push_back(division.path(part));
  return all;
}

Schedule all_reduce(const ScheduleRequest& request) {
  const auto tree = std::make_shared<const AllReduce>(request);
  const int parts = tree->division.parts;
  const Branches branches = [tree](int part, int rank) { return tree->branch(part, rank); };
  Schedule schedule(request, "hierarchical", equal_parts(parts));
  if (parts == request.world_size)
    schedule.set_turn({.ranks = near_turn(request), .messages_of_parts = true});
  std::vector<Round> up;
  if (tree->shape == TreeShape::kStar) {
    up = tree->hierarchy.rounds_up(paths(tree->division), tree->levels, 1.0 / parts);
  } else {
    up = rounds_up(schedule, branches);
  }
  for (const Round& round : up) schedule.add_round(round);
  if (tree->division.exchanges_across) {
    std::vector<Round> across;
    const double groups = tree->hierarchy.largest_group(tree->hierarchy.top());
    for (int part = 0; part < parts; ++part) {
      merge(across,
            doubling_rounds(tree->top_leaders(part), 1.0 / parts, request.world_size / groups));
    }
    for (Round& round : across) schedule.add_round(std::move(round));
  }
  for (const Round& round : backwards(up, request.world_size)) schedule.add_round(round);
  schedule.set_program([tree, branches](PlanBuilder& b, int rank) {
    Forest forest(b);
    std::vector<Branch> trees;
    for (int part = 0; part < forest.num_parts(); ++part) trees.push_back(branches(part, rank));
    forest.reduce_up(trees, !tree->division.exchanges_across);
    if (tree->division.exchanges_across) {
      forest.begin_phase();
      for (int part = 0; part < forest.num_parts(); ++part) {
        if (trees[static_cast<size_t>(part)].parent >= 0) continue;
        add_recursive_doubling(forest, part, tree->top_leaders(part));
      }
    }
    forest.broadcast_down(trees);
  });
  return schedule;
}

Schedule barrier(const ScheduleRequest& request) {
  const auto hierarchy = std::make_shared<const Hierarchy>(request);
  const std::vector<int> path(static_cast<size_t>(hierarchy->num_levels()));
  const Branches branches = [hierarchy, path](int, int rank) {
    return hierarchy->branch(rank, path, hierarchy->top(), TreeShape::kBinomial);
  };
  const std::vector<int> across = hierarchy->leaders(hierarchy->top(), 0, path);
  Schedule schedule(request, "hierarchical");
  const std::vector<Round> up = rounds_up(schedule, branches);
  for (const Round& round : up) schedule.add_round(round);
  for (Round& round : doubling_rounds(across, 1, 1)) schedule.add_round(std::move(round));
  for (const Round& round : backwards(up, 1)) schedule.add_round(round);
  schedule.set_program([branches, across](PlanBuilder& b, int rank) {
    Forest forest(b);
    const Branch tree = branches(0, rank);
    forest.reduce_up({{tree}}, false);
    forest.begin_phase();
    if (tree.parent < 0) add_recursive_doubling(forest, 0, across);
    forest.broadcast_down({{tree}});
  });
  return schedule;
}

Schedule rooted(const ScheduleRequest& request) {
  const auto hierarchy = std::make_shared<const Hierarchy>(request);
  return forest_schedule(
      request, "hierarchical", [hierarchy, path = hierarchy->path_to(request.root)](int, int rank) {
        return hierarchy->branch(rank, path, hierarchy->num_levels(), TreeShape::kBinomial);
      });
}

Schedule by_rank(const ScheduleRequest& request) {
  const auto hierarchy = std::make_shared<const Hierarchy>(request);
  const auto owners = std::make_shared<std::vector<std::vector<int>>>();
  for (int owner = 0; owner < request.world_size; ++owner) {
    owners->push_back(hierarchy->path_to(owner));
  }
  Schedule schedule =
      bare_forest_schedule(request, "hierarchical", [hierarchy, owners](int part, int rank) {
        return hierarchy->branch(rank, (*owners)[static_cast<size_t>(part)],
                                 hierarchy->num_levels(), TreeShape::kStar);
      });
  schedule.set_turn({.ranks = near_turn(request), .messages_of_parts = true});
  std::vector<Round> rounds = hierarchy->rounds_up(*owners, hierarchy->num_levels(), 1);
  if (request.collective == Collective::kAllGather) rounds = backwards(std::move(rounds), 1);
  for (Round& round : rounds) schedule.add_round(std::move(round));
  return schedule;
}

bool has_levels(const ScheduleRequest& request) {
  return request.fabric != nullptr && Hierarchy(request).num_levels() > 1;
}

constexpr int kMaxRanks = Plan::kMaxMessages / 4;

std::vector<int> one_leader(const ScheduleRequest& request) {
  return has_levels(request) ? std::vector<int>{1} : std::vector<int>{};
}

std::vector<int> all_leaders(const ScheduleRequest& request) {
  if (!has_levels(request)) return {};
  const Hierarchy hierarchy(request);
  int largest = 1;
  for (int level = 0; level < hierarchy.top(); ++level) {
    largest = std::max(largest, hierarchy.largest_group(level));
  }
  return {largest};
}

std::vector<int> one_or_all(const ScheduleRequest& request) {
  if (!has_levels(request)) return {};
  const int all = all_leaders(request).front();
  if (Division(Hierarchy(request), all, request.wants_owners).parts > kMaxRanks) return {1};
  return {1, all};
}

Generator entry(Collective collective, Schedule (*generate)(const ScheduleRequest&),
                std::vector<int> (*parameters)(const ScheduleRequest&),
                Codable codable = Codable::kNever) {
  return {.name = "hierarchical",
          .collective = collective,
          .generate = generate,
          .max_world_size = kMaxRanks,
          .parameters = parameters,
          .codable = codable};
}

}  // namespace

std::vector<Generator> hierarchical_generators() {
  return {
      entry(Collective::kAllReduce, all_reduce, one_or_all, Codable::kOnAnyEdges),
      entry(Collective::kBroadcast, rooted, one_leader),
      entry(Collective::kReduce, rooted, one_leader),
      entry(Collective::kAllGather, by_rank, all_leaders, Codable::kOnAnyEdges),
      entry(Collective::kReduceScatter, by_rank, all_leaders, Codable::kOnAnyEdges),
      entry(Collective::kBarrier, barrier, one_leader),
  };
}

}  // namespace q7x2
