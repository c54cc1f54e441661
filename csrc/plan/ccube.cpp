// C-Cube: one tree, up and down at the same time, slice after slice.
//
//   reduce      0 -> 1 -> 2 <- 3 <- 4    slice k + 1    While one slice comes down, the next ones
//   broadcast   0 <- 1 <- 2 -> 3 -> 4    slice k        go up: every link carries both directions.
//
//   all_reduce: twice the depth of the tree in steps. The busiest rank of a path sends 2 B and
//   receives 2 B, of a binary tree 3 B. Each wire of the tree carries B each way. reduce and
//   broadcast are its two halves alone.
//
// Any tree here runs like that, since a slice turns round at the root as soon as it is complete
// and waits for no other. What matters is the tree: one whose reduction and broadcast load the two
// directions of the same wires, so that overlapping them halves the time. Three are tried on the
// Fabric's routes, and the one whose busiest resource finishes first is taken, of equally fast ones
// the lower:
//
//   - a path along the near ranks with the root in the middle: every host and rack is entered once;
//   - a binary tree over the near ranks: twice as busy, but of logarithmic depth;
//   - the private links, breadth first from their centre, where they reach all hosts.
//
// binomial_tree runs the same way, but its root has log2 n children and receives log2 n times B.
// double_binary_tree spreads the load better over one switch; it halves the data for that, so a
// slice is complete when both trees have delivered. Here all data takes one tree, and slices
// complete in order: what needs the first can start when it is there.
// It wins where links are wires of their own, and where the first result matters more than the
// last. Cho, Son and Kim, "Logical/physical topology-aware collective communication in deep
// learning training", HPCA 2023.
#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "fabric/fabric.h"
#include "plan/generators.h"
#include "plan/network.h"
#include "plan/order.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

Tree path(const std::vector<int>& order) {
  const size_t middle = order.size() / 2;
  Tree tree(order.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == middle) continue;
    tree[static_cast<size_t>(order[i])] = order[i < middle ? i + 1 : i - 1];
  }
  return tree;
}

Tree binary_tree(const std::vector<int>& order) {
  Tree tree(order.size(), -1);
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    tree[static_cast<size_t>(order[static_cast<size_t>(i)])] = in_order_branch(order, i).parent;
  }
  return tree;
}

int depth(const Tree& tree) {
  int deepest = 0;
  for (int rank = 0; rank < static_cast<int>(tree.size()); ++rank) {
    int steps = 0;
    for (int each = rank; tree[static_cast<size_t>(each)] >= 0; ++steps) {
      each = tree[static_cast<size_t>(each)];
    }
    deepest = std::max(deepest, steps);
  }
  return deepest;
}

/// The private links from `root` on, breadth first; on each host one rank speaks for the others.
/// Empty where some host cannot be reached.
Tree link_tree(const Fabric& fabric, int root) {
  std::vector<int> speaker(fabric.hosts.size(), -1);
  for (int rank = fabric.world_size() - 1; rank >= 0; --rank) {
    speaker[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])] = rank;
  }
  std::vector<int> parent(fabric.hosts.size(), -1);
  std::vector<bool> seen(fabric.hosts.size());
  seen[static_cast<size_t>(root)] = true;
  size_t reached = 1;
  std::queue<int> next({root});
  for (; !next.empty(); next.pop()) {
    for (const Fabric::Link& link : fabric.links) {
      if (link.a != next.front() && link.b != next.front()) continue;
      const int other = link.a == next.front() ? link.b : link.a;
      if (seen[static_cast<size_t>(other)]) continue;
      seen[static_cast<size_t>(other)] = true;
      parent[static_cast<size_t>(other)] = next.front();
      next.push(other);
      ++reached;
    }
  }
  if (reached < fabric.hosts.size()) return {};
  return tree_of_ranks(parent, speaker, fabric);
}

/// Seconds a byte of the buffer takes through the busiest resource, up and down together.
double busiest(const Tree& tree, const Routes& routes, const std::vector<double>& rates) {
  std::vector<double> seconds(rates.size());
  for (int rank = 0; rank < static_cast<int>(tree.size()); ++rank) {
    const int parent = tree[static_cast<size_t>(rank)];
    if (parent < 0) continue;
    for (const auto& [from, to] : {std::pair(rank, parent), std::pair(parent, rank)}) {
      for (const int resource : routes.between(from, to).resources) {
        seconds[static_cast<size_t>(resource)] += 1 / rates[static_cast<size_t>(resource)];
      }
    }
  }
  return *std::ranges::max_element(seconds);
}

Tree best_tree(const PlanRequest& request) {
  const Fabric fabric = fabric_or_uniform(request);
  const Routes routes(fabric);
  const std::vector<double> rates = known_rates(routes);
  const std::vector<int> order = near_order(request);
  std::vector<Tree> trees{path(order), binary_tree(order)};
  for (int host = 0; host < static_cast<int>(fabric.hosts.size()) && !fabric.links.empty();
       ++host) {
    Tree tree = link_tree(fabric, host);
    if (!tree.empty()) trees.push_back(std::move(tree));
  }
  return *std::ranges::min_element(trees, {}, [&](const Tree& tree) {
    return std::tuple(busiest(tree, routes, rates), depth(tree));
  });
}

/// The same wires, led to another root.
Tree rerooted(Tree tree, int root) {
  for (int rank = root, parent = -1; rank >= 0;) {
    parent = std::exchange(tree[static_cast<size_t>(rank)], parent);
    std::swap(rank, parent);
  }
  return tree;
}

/// An all-reduce, or one of its two halves alone.
Plan plan(const PlanRequest& request) {
  static RecentResults<Tree> recent;
  const auto tree = recent.get(request, [&] {
    return request.root < 0 ? best_tree(request) : rerooted(best_tree(request), request.root);
  });
  return forest_plan(request, "ccube", {{branch_of(*tree, request.rank)}});
}

}  // namespace

std::vector<Generator> ccube_generators() {
  std::vector<Generator> all;
  for (const Collective op :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    all.push_back({.name = "ccube", .collective = op, .generate = plan});
  }
  return all;
}

}  // namespace q7x2
