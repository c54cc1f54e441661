// Hierarchical: fold within groups of near ranks first, then across the groups, then pass the
// result on within.
//
//   rack 0: 0 1 2 3     part 0:  0, 1, 2, 3 -> 0 \            0 -> 1, 2, 3     In part 1 the ranks
//   1
//                                                  0 <-> 4                    and 5 meet, and so
//                                                  on:
//   rack 1: 4 5 6 7              4, 5, 6, 7 -> 4 /            4 -> 5, 6, 7    k leaders, k parts.
//
// Groups are hosts, and racks of hosts: a group of groups has one leader a part, drawn from its
// groups' leaders. The parameter k is the number of leaders of a group; groups smaller than k use a
// leader for several parts.
//
//   k     within groups                      across g groups         bytes through a group's cable
//   1     tree up, tree down (one part)      recursive doubling      B log2 g, each way
//   all   each rank folds its share (SRA)    g = 2: exchange         B, each way
//                                            else: each share has    2 B (g-1)/g, each way
//                                            g parts, and each group is the root for one of them
//
// With k = all, a rank of a group of m moves 2 B (m-1)/m within it and about 2 B/m across. So what
// is scarce, the cable between racks or the NIC of a host, carries the least it can, and what is
// plentiful the rest; k = 1 takes the fewest slow steps for small data. The other collectives go
// along the same trees: broadcast and reduce along one, all_gather and reduce_scatter along one a
// rank, and each part crosses each cable once. A barrier gathers within, disseminates across,
// releases within.
// Thakur, Rabenseifner and Gropp, 2005, for SMP clusters; Cho et al., "BlueConnect: decomposing
// all-reduce for deep learning on heterogeneous network hierarchy", 2019, for k = all.
#include <algorithm>
#include <map>

#include "fabric/fabric.h"
#include "plan/generators.h"
#include "plan/order.h"
#include "plan/recursive_doubling.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

enum class Shape { kStar, kBinomial };

/// Ranks in groups, groups in larger groups; the last level has a single group. Levels at which all
/// groups have one member are left out, and so are those that group nothing apart.
class Hierarchy {
 public:
  explicit Hierarchy(const PlanRequest& request) {
    const Fabric& fabric = *request.fabric;
    const std::vector<int> order = fabric.near_order();
    const auto host_of = [&](int rank) { return fabric.host_of[static_cast<size_t>(rank)]; };
    const auto rack_of = [&](int rank) { return fabric.rack_of(rank); };
    add_level(order, host_of, true);
    add_level(order, rack_of, false);
    add_level(
        order, [](int) { return 0; }, false);
  }

  int num_levels() const { return static_cast<int>(levels_.size()); }
  int top() const { return num_levels() - 1; }

  int largest_group(int level) const {
    size_t largest = 0;
    for (const auto& group : at(level).groups) largest = std::max(largest, group.size());
    return static_cast<int>(largest);
  }

  /// Which member of its group leads to `rank`, by level.
  std::vector<int> path_to(int rank) const {
    std::vector<int> path;
    int unit = rank;
    for (const Level& level : levels_) {
      path.push_back(level.place.at(unit));
      unit = level.group_of.at(unit);
    }
    return path;
  }

  /// The place of `rank` in the tree of the first `num_levels` levels in which, at each level, the
  /// member that `path` names leads its group.
  Branch branch(int rank, const std::vector<int>& path, int num_levels, Shape network_shape) const {
    Branch whole;
    int unit = rank;
    for (int l = 0; l < num_levels; ++l) {
      const int group = at(l).group_of.at(unit);
      std::vector<int> team = leaders(l, group, path);
      const int size = static_cast<int>(team.size());
      const int lead = path[static_cast<size_t>(l)] % size;
      std::ranges::rotate(team, team.begin() + lead);
      const int index = (at(l).place.at(unit) - lead + size) % size;
      const bool star = at(l).in_memory || network_shape == Shape::kStar;
      const Branch part = star ? star_branch(team, index) : binomial_branch(team, index);
      // The far ones first: they have the longest way to go.
      whole.children.insert(whole.children.begin(), part.children.begin(), part.children.end());
      if (index > 0) {
        whole.parent = part.parent;
        break;
      }
      unit = group;
    }
    return whole;
  }

  /// The leaders of all members of a group.
  std::vector<int> leaders(int level, int group, const std::vector<int>& path) const {
    std::vector<int> team;
    for (int unit : at(level).groups[static_cast<size_t>(group)]) {
      for (int l = level - 1; l >= 0; --l) {
        const std::vector<int>& members = at(l).groups[static_cast<size_t>(unit)];
        unit = members[static_cast<size_t>(path[static_cast<size_t>(l)]) % members.size()];
      }
      team.push_back(unit);
    }
    return team;
  }

 private:
  struct Level {
    std::vector<std::vector<int>> groups;  ///< of groups of the level below, or of ranks
    std::map<int, int> group_of;           ///< the other way round
    std::map<int, int> place;              ///< in its group
    bool in_memory;                        ///< members share a host
  };

  const Level& at(int level) const { return levels_[static_cast<size_t>(level)]; }

  template <typename Label>
  void add_level(const std::vector<int>& order, Label label, bool in_memory) {
    Level level{{}, {}, {}, in_memory};
    std::map<int, int> group_of_label;
    size_t largest = 0;
    for (const int rank : order) {
      int unit = rank;
      for (const Level& below : levels_) unit = below.group_of.at(unit);
      if (level.group_of.contains(unit)) continue;
      const auto [entry, is_new] =
          group_of_label.try_emplace(label(rank), static_cast<int>(level.groups.size()));
      if (is_new) level.groups.emplace_back();
      std::vector<int>& group = level.groups[static_cast<size_t>(entry->second)];
      level.group_of[unit] = entry->second;
      level.place[unit] = static_cast<int>(group.size());
      group.push_back(unit);
      largest = std::max(largest, group.size());
    }
    if (largest > 1) levels_.push_back(std::move(level));
  }

  std::vector<Level> levels_;
};

/// How all_reduce divides the data: a part for each choice of leaders.
struct Division {
  Division(const Hierarchy& hierarchy, int leaders) {
    exchanges_across = leaders == 1 || hierarchy.largest_group(hierarchy.top()) == 2;
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

  bool exchanges_across;     ///< at the top: all leaders fold; else one does, and sends the result
  std::vector<int> choices;  ///< of leaders, by level
  int parts = 1;
};

Plan all_reduce(const PlanRequest& request) {
  const Hierarchy hierarchy(request);
  const Division division(hierarchy, request.parameter);
  const int levels = hierarchy.num_levels() - (division.exchanges_across ? 1 : 0);
  const Shape shape = request.parameter == 1 ? Shape::kBinomial : Shape::kStar;
  std::vector<Branch> trees;
  for (int part = 0; part < division.parts; ++part) {
    trees.push_back(hierarchy.branch(request.rank, division.path(part), levels, shape));
  }
  Forest forest(request, "hierarchical", equal_parts(division.parts));
  forest.reduce_up(trees, !division.exchanges_across);
  if (division.exchanges_across) {
    forest.begin_phase();
    for (int part = 0; part < division.parts; ++part) {
      if (trees[static_cast<size_t>(part)].parent >= 0) continue;
      add_recursive_doubling(
          forest, part, hierarchy.leaders(hierarchy.top(), 0, division.path(part)), request.rank);
    }
  }
  forest.broadcast_down(trees);
  return forest.build();
}

Plan barrier(const PlanRequest& request) {
  const Hierarchy hierarchy(request);
  const std::vector<int> path(static_cast<size_t>(hierarchy.num_levels()));
  const Branch tree = hierarchy.branch(request.rank, path, hierarchy.top(), Shape::kBinomial);
  Forest forest(request, "hierarchical");
  forest.reduce_up({{tree}}, false);
  forest.begin_phase();
  if (tree.parent < 0) {
    add_recursive_doubling(forest, 0, hierarchy.leaders(hierarchy.top(), 0, path), request.rank);
  }
  forest.broadcast_down({{tree}});
  return forest.build();
}

Plan rooted(const PlanRequest& request) {
  const Hierarchy hierarchy(request);
  const Branch tree = hierarchy.branch(request.rank, hierarchy.path_to(request.root),
                                       hierarchy.num_levels(), Shape::kBinomial);
  return forest_plan(request, "hierarchical", {{tree}});
}

Plan by_rank(const PlanRequest& request) {
  const Hierarchy hierarchy(request);
  std::vector<Branch> trees;
  for (int owner = 0; owner < request.world_size; ++owner) {
    trees.push_back(hierarchy.branch(request.rank, hierarchy.path_to(owner), hierarchy.num_levels(),
                                     Shape::kStar));
  }
  return forest_plan(request, "hierarchical", trees);
}

bool has_levels(const PlanRequest& request) {
  return request.fabric != nullptr && Hierarchy(request).num_levels() > 1;
}

constexpr int kMaxRanks = Plan::kMaxMessages / 4;

std::vector<int> one_leader(const PlanRequest& request) {
  return has_levels(request) ? std::vector<int>{1} : std::vector<int>{};
}

std::vector<int> all_leaders(const PlanRequest& request) {
  if (!has_levels(request)) return {};
  const Hierarchy hierarchy(request);
  int largest = 1;
  for (int level = 0; level < hierarchy.top(); ++level) {
    largest = std::max(largest, hierarchy.largest_group(level));
  }
  return {largest};
}

std::vector<int> one_or_all(const PlanRequest& request) {
  if (!has_levels(request)) return {};
  const int all = all_leaders(request).front();
  if (Division(Hierarchy(request), all).parts > kMaxRanks) return {1};
  return {1, all};
}

Generator entry(Collective collective, Plan (*generate)(const PlanRequest&),
                std::vector<int> (*parameters)(const PlanRequest&)) {
  return {.name = "hierarchical",
          .collective = collective,
          .generate = generate,
          .max_world_size = kMaxRanks,
          .parameters = parameters};
}

}  // namespace

std::vector<Generator> hierarchical_generators() {
  return {
      entry(Collective::kAllReduce, all_reduce, one_or_all),
      entry(Collective::kBroadcast, rooted, one_leader),
      entry(Collective::kReduce, rooted, one_leader),
      entry(Collective::kAllGather, by_rank, all_leaders),
      entry(Collective::kReduceScatter, by_rank, all_leaders),
      entry(Collective::kBarrier, barrier, one_leader),
  };
}

}  // namespace q7x2
