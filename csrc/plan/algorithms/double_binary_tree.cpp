// Double binary tree: two binary trees, each for half of the data. The inner ranks of one tree are
// the leaves of the other.
//
//   tree 0:        4            tree 1:        3           Positions count from 1, near ranks next
//              2       6                   1       5       to each other. Tree 0 lists them in
//            1   3   5   7               7   2   4   6     order, so the odd ones are leaves; tree
//                                                          1 is the same, one position further on.
//
//   collective    steps                     bytes sent by the busiest rank
//   all_reduce    2 floor(log2 n)           2 B, and as many received
//   broadcast     1 + floor(log2 (n-1))     B
//   reduce        1 + floor(log2 (n-1))     B, and as many received
//
// A rank with two children in one tree and none in the other moves 3 B/2 and B/2: no more than in a
// chain, but in a logarithmic number of steps. The root of a broadcast or a reduce is above both
// trees and serves one half of the data through each. It wins for medium and large data in large
// groups.
// Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// 2009.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// The team in the order of each of the two trees.
std::vector<Order> line_ups(const std::vector<int>& team) {
  std::vector<int> shifted = team;
  if (!team.empty()) std::ranges::rotate(shifted, shifted.end() - 1);
  return {Order(team), Order(shifted)};
}

/// Which ranks exchange messages in both trees, if the team starts at position `first` of a row.
std::vector<Talk> talks_of(int team, int first) {
  std::vector<int> positions(static_cast<size_t>(team));
  std::iota(positions.begin(), positions.end(), first);
  std::vector<Talk> talks;
  for (const Order& tree : line_ups(positions)) {
    for (int index = 0; index < team; ++index) {
      const Branch branch = in_order_branch(tree.ranks(), index);
      if (branch.parent >= 0) talks.push_back({branch.parent, tree.at(index), 0.5});
      if (branch.parent < 0 && first > 0) talks.push_back({0, tree.at(index), 0.5});
    }
  }
  return talks;
}

Schedule all_reduce(const ScheduleRequest& request) {
  const Order order = arranged(request, near_order(request), talks_of(request.world_size, 0));
  const auto teams = std::make_shared<const std::vector<Order>>(line_ups(order.ranks()));
  const Branches branches = [teams](int part, int rank) {
    const Order& team = (*teams)[static_cast<size_t>(part)];
    return in_order_branch(team.ranks(), team.position_of(rank));
  };
  return forest_schedule(request, "double_binary_tree", branches, equal_parts(2));
}

Schedule rooted(const ScheduleRequest& request) {
  const Order near = arranged(request, near_path_from(request, request.root),
                              talks_of(request.world_size - 1, 1), true);
  const std::vector<int>& order = near.ranks();
  const auto teams =
      std::make_shared<const std::vector<Order>>(line_ups({order.begin() + 1, order.end()}));
  const Branches branches = [teams, root = request.root](int part, int rank) {
    const Order& team = (*teams)[static_cast<size_t>(part)];
    Branch branch;
    if (rank != root) {
      branch = in_order_branch(team.ranks(), team.position_of(rank));
      if (branch.parent < 0) branch.parent = root;
    } else if (team.size() > 0) {
      branch.children = {in_order_root(team.ranks())};
    }
    return branch;
  };
  return forest_schedule(request, "double_binary_tree", branches, equal_parts(2));
}

}  // namespace

std::vector<Generator> double_binary_tree_generators() {
  return {
      {.name = "double_binary_tree", .collective = Collective::kAllReduce, .generate = all_reduce},
      {.name = "double_binary_tree", .collective = Collective::kBroadcast, .generate = rooted},
      {.name = "double_binary_tree", .collective = Collective::kReduce, .generate = rooted},
  };
}

}  // namespace q7x2
