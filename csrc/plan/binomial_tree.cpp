// Binomial tree: each step doubles the ranks that have the data, or halves those that still owe it.
//
//            0                 Positions are counted from the root. The parent of position v is v
//        / / | \               without its lowest set bit; its children are v + 1, v + 2, v + 4,
//        ...
//       1 2  4  8              below that bit. Largest subtree first on the way down, smallest
//         | /|  |\\            first on the way up.
//         3 5 6 ...
//
//   collective    steps              bytes sent by the busiest rank
//   broadcast     ceil(log2 n)       B ceil(log2 n), the root
//   reduce        ceil(log2 n)       B, and the root receives B ceil(log2 n)
//   all_reduce    2 ceil(log2 n)     reduce to rank 0, then broadcast
//
// It wins for small data with many ranks, where one rank alone cannot serve all. A rank folds all
// its children at once: one pass over the memory and one rounding at each level.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
#include <algorithm>
#include <bit>

#include "plan/generators.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

struct Tree {
  Tree(const PlanRequest& request, int root) {
    const int n = request.world_size;
    const int position = (request.rank - root + n) % n;
    const auto rank_at = [&](int other) { return (other + root) % n; };
    for (int bit = 1; position + bit < n && (position & bit) == 0; bit *= 2) {
      children.push_back(rank_at(position + bit));
    }
    if (position > 0) parent = rank_at(position & (position - 1));
  }

  bool is_root() const { return parent < 0; }

  int parent = -1;
  std::vector<int> children;  ///< smallest subtree first
};

/// The root's sum ends in output(0); the others leave their buffer alone. Returns the ops whose
/// completion means that this rank is done with its input.
std::vector<OpId> add_reduce(PlanBuilder& b, const Tree& tree) {
  std::vector<Block> operands = {Block::input(0)};
  std::vector<OpId> received;
  for (int child : tree.children) {
    operands.push_back(Block::scratch(static_cast<int>(received.size())));
    received.push_back(b.recv(child, operands.back(), {}, Block::input(0)));
  }
  Block sum = Block::input(0);
  std::vector<OpId> ready;
  if (!tree.children.empty()) {
    sum = tree.is_root() ? Block::output(0) : Block::scratch(0);
    ready = {b.reduce(operands, sum, tree.is_root(), received, Block::input(0))};
  }
  if (!tree.is_root()) ready = {b.send(tree.parent, sum, ready, Block::input(0))};
  return ready;
}

void add_broadcast(PlanBuilder& b, const Tree& tree, std::vector<OpId> ready) {
  if (!tree.is_root()) ready = {b.recv(tree.parent, Block::output(0), ready)};
  for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
    b.send(*child, Block::output(0), ready);
  }
}

Plan broadcast(const PlanRequest& request) {
  PlanBuilder b(request, "binomial_tree");
  add_broadcast(b, Tree(request, request.root), {});
  return b.build();
}

Plan reduce(const PlanRequest& request) {
  PlanBuilder b(request, "binomial_tree");
  add_reduce(b, Tree(request, request.root));
  return b.build();
}

Plan all_reduce(const PlanRequest& request) {
  PlanBuilder b(request, "binomial_tree");
  const Tree tree(request, 0);
  add_broadcast(b, tree, add_reduce(b, tree));
  return b.build();
}

int depth(int n) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
}

double broadcast_cost(const LinkCost& link, double bytes, int n) {
  return depth(n) * link.step(1, bytes);
}

double reduce_cost(const LinkCost& link, double bytes, int n) {
  return depth(n) * (link.step(1, bytes) + bytes * link.gamma);
}

double all_reduce_cost(const LinkCost& link, double bytes, int n) {
  return reduce_cost(link, bytes, n) + broadcast_cost(link, bytes, n);
}

}  // namespace

std::vector<Generator> binomial_tree_generators() {
  return {
      {"binomial_tree", Collective::kBroadcast, broadcast, broadcast_cost},
      {"binomial_tree", Collective::kReduce, reduce, reduce_cost},
      {"binomial_tree", Collective::kAllReduce, all_reduce, all_reduce_cost},
  };
}

}  // namespace q7x2
