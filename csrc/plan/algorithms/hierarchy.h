// Hierarchy: ranks in groups of near ones, and which rank leads a group in which part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/algorithms/order.h"
#include "plan/algorithms/recursive_doubling.h"
#include "plan/cost/network.h"
#include "plan/ir/schedule.h"
#include "plan/ir/tree.h"

namespace q7x2 {

enum class TreeShape { kStar, kBinomial };

/// If the leaders of hosts exchange data, near hosts are next to each other. Between racks, hosts
/// with the same place in their racks lead at the same time.
inline Order hierarchy_order(const ScheduleRequest& request) {
  if (request.fabric->racks.size() > 1) return near_across_racks(request);
  const bool exchanges = request.collective == Collective::kBarrier ||
                         (request.collective == Collective::kAllReduce && request.parameter == 1);
  return exchanges ? doubling_order_of_hosts(request) : near_order(request);
}

/// Ranks in groups, groups in larger groups; the last level has a single group. Leaves out levels
/// whose groups all have one member, and levels with a single group that are not the last.
class Hierarchy {
 public:
  explicit Hierarchy(const ScheduleRequest& request) {
    const Fabric& fabric = *request.fabric;
    std::vector<int> order = hierarchy_order(request).ranks();
    put_fast_first(order, fabric);
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

  /// By level, which member of its group leads to `rank`.
  std::vector<int> path_to(int rank) const {
    std::vector<int> path;
    int unit = rank;
    for (const Level& level : levels_) {
      path.push_back(level.position.at(unit));
      unit = level.group_of.at(unit);
    }
    return path;
  }

  /// The branch of `rank` in the tree of the first `num_levels` levels. At each level the member
  /// given by `path` leads its group.
  Branch branch(int rank, const std::vector<int>& path, int num_levels,
                TreeShape network_shape) const {
    Branch whole;
    int unit = rank;
    for (int l = 0; l < num_levels; ++l) {
      const int group = at(l).group_of.at(unit);
      std::vector<int> team = leaders(l, group, path);
      const int size = static_cast<int>(team.size());
      const int lead = path[static_cast<size_t>(l)] % size;
      std::ranges::rotate(team, team.begin() + lead);
      const int index = (at(l).position.at(unit) - lead + size) % size;
      const bool star = at(l).in_memory || network_shape == TreeShape::kStar;
      const Branch part = star ? star_branch(team, index) : binomial_branch(team, index);
      // The far children first, because they take longest.
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

  /// The rounds up the trees of the first `num_levels` levels, in which every group is a star,
  /// level by level. `paths`: one per tree.
  std::vector<Round> rounds_up(const std::vector<std::vector<int>>& paths, int num_levels,
                               double share) const {
    std::vector<Round> rounds;
    double contributions = 1;
    for (int level = 0; level < num_levels; ++level) {
      // Trees with the same leaders at lower levels differ only in the leader at this level.
      std::map<std::vector<int>, std::map<int, uint32_t>> leads;
      for (const std::vector<int>& path : paths) {
        ++leads[{path.begin(), path.begin() + level}][path[static_cast<size_t>(level)]];
      }
      Round round{.folds = true, .contributions = contributions};
      for (int group = 0; group < static_cast<int>(at(level).groups.size()); ++group) {
        for (const auto& [below, lead] : leads)
          add_stars(round, leaders(level, group, below), lead, share);
      }
      rounds.push_back(std::move(round));
      contributions *= largest_group(level);
    }
    return rounds;
  }

 private:
  struct Level {
    std::vector<std::vector<int>> groups;  ///< members: groups of the level below, or ranks
    std::map<int, int> group_of;           ///< the group of each member
    std::map<int, int> position;           ///< index of each member in its group
    bool in_memory;                        ///< members share a host
  };

  /// Within each rack: a slow NIC should not lead it.
  static void put_fast_first(std::vector<int>& order, const Fabric& fabric) {
    for (auto first = order.begin(); first != order.end();) {
      const auto last = std::find_if(first, order.end(), [&](int rank) {
        return fabric.rack_of(rank) != fabric.rack_of(*first);
      });
      std::ranges::stable_sort(first, last, std::greater<>(), [&](int rank) {
        return rate_of_host(fabric, fabric.host_of[static_cast<size_t>(rank)]);
      });
      first = last;
    }
  }

  const Level& at(int level) const { return levels_[static_cast<size_t>(level)]; }

  /// `leads`: number of trees that each member leads; indices beyond the members start again.
  static void add_stars(Round& round, const std::vector<int>& members,
                        const std::map<int, uint32_t>& leads, double share) {
    if (members.size() < 2) return;
    std::vector<uint32_t> trees(members.size());
    for (const auto& [lead, count] : leads)
      trees[static_cast<size_t>(lead) % members.size()] += count;
    if (std::ranges::count(trees, trees[0]) == static_cast<std::ptrdiff_t>(trees.size())) {
      const Team team = team_of(members);
      round.crosses.push_back({team, team, trees[0], share});
      return;
    }
    for (size_t lead = 0; lead < members.size(); ++lead) {
      for (size_t from = 0; from < members.size() && trees[lead] > 0; ++from) {
        if (from != lead) round.edges.push_back({members[from], members[lead], trees[lead], share});
      }
    }
  }

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
      level.position[unit] = static_cast<int>(group.size());
      group.push_back(unit);
      largest = std::max(largest, group.size());
    }
    if (largest > 1) levels_.push_back(std::move(level));
  }

  std::vector<Level> levels_;
};

}  // namespace q7x2
