// Double binary tree: two binary trees, each for half of the data; who works in one rests in the
// other.
//
//   tree 0:        4            tree 1:        3           Positions count from 1, near ranks side
//              2       6                   1       5       by side. In tree 0 they stand in order,
//            1   3   5   7               7   2   4   6     so the odd ones are leaves; tree 1 is
//            the
//                                                          same tree one position further on.
//
//   collective    steps                     bytes sent by the busiest rank
//   all_reduce    2 ceil(log2 n)            2 B, and as many received
//   broadcast     1 + ceil(log2 n)          B
//   reduce        1 + ceil(log2 n)          B, and as many received
//
// A rank with two children in one tree and none in the other moves 3 B/2 and B/2: no more than in a
// chain, after a logarithmic number of steps. The root of a broadcast or a reduce stands above both
// trees and serves one half through each. It wins for medium and large data in large groups.
// Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// 2009.
#include <bit>
#include <numeric>

#include "plan/generators.h"
#include "plan/order.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

int lowest_bit(int position) {
  return position & -position;
}

/// The place of `position` in the binary tree in which positions 1 ... n stand in order; positions
/// in place of ranks, 0 where there is no parent.
Branch in_order_branch(int position, int n) {
  Branch branch{0, {}};
  const int top = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const auto above = [](int child) {
    const int bit = lowest_bit(child);
    return (child ^ bit) | (bit << 1);
  };
  if (position != top) {
    branch.parent = above(position);
    while (branch.parent > n) branch.parent = above(branch.parent);
  }
  const int half = lowest_bit(position) / 2;
  if (half > 0) branch.children.push_back(position - half);
  for (int right = half; right > 0; right /= 2) {
    if (position + right > n) continue;
    branch.children.push_back(position + right);
    break;
  }
  return branch;
}

/// One tree over `team`, of which this rank is at `index`; tree 1 is shifted by one position.
Branch tree_branch(std::span<const int> team, int index, int shift) {
  const int n = static_cast<int>(team.size());
  const Branch positions = in_order_branch((index + shift) % n + 1, n);
  const auto rank_at = [&](int position) {
    return team[static_cast<size_t>((position - 1 + n - shift) % n)];
  };
  Branch branch;
  if (positions.parent > 0) branch.parent = rank_at(positions.parent);
  for (const int child : positions.children) branch.children.push_back(rank_at(child));
  return branch;
}

Plan all_reduce(const PlanRequest& request) {
  const std::vector<int> order = near_order(request);
  const int index = index_in(order, request.rank);
  return forest_plan(request, "double_binary_tree",
                     {{tree_branch(order, index, 0), tree_branch(order, index, 1)}},
                     equal_parts(2));
}

Plan rooted(const PlanRequest& request) {
  const std::vector<int> order = near_order_from(request, request.root);
  const auto team = std::span(order).subspan(1);
  std::vector<Branch> trees(2);
  for (int shift = 0; shift < 2 && !team.empty(); ++shift) {
    Branch& branch = trees[static_cast<size_t>(shift)];
    if (request.rank == request.root) {
      for (int index = 0; index < static_cast<int>(team.size()); ++index) {
        if (tree_branch(team, index, shift).parent < 0) {
          branch.children = {team[static_cast<size_t>(index)]};
        }
      }
    } else {
      branch = tree_branch(team, index_in(order, request.rank) - 1, shift);
      if (branch.parent < 0) branch.parent = request.root;
    }
  }
  return forest_plan(request, "double_binary_tree", trees, equal_parts(2));
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
