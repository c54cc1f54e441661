// C-Cube: one tree, up and down at the same time, slice after slice.
//
//   reduce      0 -> 1 -> 2 <- 3 <- 4    slice k + 1    While one slice comes down, the next slices
//   broadcast   0 <- 1 <- 2 -> 3 -> 4    slice k        go up: every link carries both directions.
//
// all_reduce takes twice the depth of the tree in steps. The busiest rank of a path sends 2 B and
// receives 2 B, that of a binary tree 3 B. Each wire of the tree carries B in each direction.
// reduce and broadcast are its two halves.
//
// Every tree here is pipelined like that, since a slice turns round at the root as soon as it is
// complete and waits for no other. What matters is the choice of the tree: its reduction and its
// broadcast should load the two directions of the same wires, so that overlapping them halves the
// time. Three trees are evaluated on the Fabric's routes. The one whose busiest resource finishes
// first is taken; among equally fast ones, the one with the least depth:
//
//   - a path along the near ranks with the root in the middle: it enters every host and rack once;
//   - a binary tree over the near ranks: twice as busy, but of logarithmic depth;
//   - the private links, breadth first from their centre, if they reach all hosts.
//
// binomial_tree is pipelined the same way, but its root has log2 n children and receives log2 n
// times B. double_binary_tree spreads the load better over one switch; for that it halves the data,
// so a slice is complete only when both trees have delivered. Here all data uses one tree, and
// slices complete in order, so a consumer of the first slices can start early.
// It wins if links are separate wires, and if the first result matters more than the last.
//
// ccube:2 is the double tree: two trees over the private links, each for half of the data. They
// grow in parallel, each along wires that the other one leaves free as far as possible. It is
// offered if that relieves the busiest wire; on one switch there is double_binary_tree.
// Cho, Son and Kim, "Logical/physical topology-aware collective communication in deep learning
// training", HPCA 2023.
#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/cost/network.h"
#include "plan/ir/tree.h"

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

Tree binary_tree_over(const std::vector<int>& order) {
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

/// The rank of each host that represents the others.
std::vector<int> speakers(const Fabric& fabric) {
  std::vector<int> speaker(fabric.hosts.size(), -1);
  for (int rank = fabric.world_size() - 1; rank >= 0; --rank) {
    speaker[static_cast<size_t>(fabric.host_of[static_cast<size_t>(rank)])] = rank;
  }
  return speaker;
}

/// The private links from `root`, breadth first. Empty if some host cannot be reached.
Tree link_tree(const Fabric& fabric, int root) {
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
  return tree_of_ranks(parent, speakers(fabric), fabric);
}

/// Two trees over hosts along the private links.
class TwinTrees {
 public:
  /// From two roots. `is_complete` is false if some host cannot be reached.
  TwinTrees(const Fabric& fabric, int first_root, int second_root)
      : fabric_(fabric), uses_(fabric.links.size()), free_(fabric.hosts.size()) {
    for (const Fabric::Link& link : fabric.links) {
      ++free_[static_cast<size_t>(link.a)];
      ++free_[static_cast<size_t>(link.b)];
    }
    for (const int root : {first_root, second_root}) {
      Half half{Tree(fabric.hosts.size(), -1), std::vector<int>(fabric.hosts.size(), -1)};
      half.depth[static_cast<size_t>(root)] = 0;
      halves_.push_back(std::move(half));
    }
    for (size_t turn = 0; is_complete_ && turn + 1 < fabric.hosts.size(); ++turn) {
      is_complete_ = grow(halves_[0], halves_[1]) && grow(halves_[1], halves_[0]);
    }
  }

  bool is_complete() const { return is_complete_; }
  const Tree& tree(size_t index) const { return halves_[index].parent; }

 private:
  struct Half {
    Tree parent;
    std::vector<int> depth;  // by host; -1: not reached
  };

  /// Whether the other tree has not reached the host yet, and only one wire is left for that.
  bool is_last_way(const Half& other, int host) const {
    return other.depth[static_cast<size_t>(host)] < 0 && free_[static_cast<size_t>(host)] <= 1;
  }

  /// Adds the best host: over a wire that is free and not the last one for the other tree, near the
  /// root, with many free wires.
  bool grow(Half& half, const Half& other) {
    using Rating = std::tuple<int, bool, int, int>;
    std::optional<std::tuple<Rating, size_t, int, int>> best;  // the rating, the link, from and to
    for (size_t i = 0; i < fabric_.links.size(); ++i) {
      const auto& [a, b, rate, alpha] = fabric_.links[i];
      for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
        const int depth = half.depth[static_cast<size_t>(from)];
        if (depth < 0 || half.depth[static_cast<size_t>(to)] >= 0) continue;
        const Rating rating{uses_[i], is_last_way(other, from) || is_last_way(other, to), depth,
                            -free_[static_cast<size_t>(to)]};
        if (!best || rating < std::get<0>(*best)) best = {rating, i, from, to};
      }
    }
    if (!best) return false;
    const auto& [rating, link, from, to] = *best;
    half.parent[static_cast<size_t>(to)] = from;
    half.depth[static_cast<size_t>(to)] = half.depth[static_cast<size_t>(from)] + 1;
    if (uses_[link]++ == 0) {
      --free_[static_cast<size_t>(from)];
      --free_[static_cast<size_t>(to)];
    }
    return true;
  }

  const Fabric& fabric_;
  std::vector<int> uses_;  // by link
  std::vector<int> free_;  // by host: number of wires that no tree uses
  std::vector<Half> halves_;
  bool is_complete_ = true;
};

/// Seconds per byte of the buffer at the busiest resource, up and down together. The trees share
/// the buffer.
double busiest(const std::vector<Tree>& trees, const Routes& routes,
               const std::vector<double>& rates) {
  std::vector<double> seconds(rates.size());
  for (const Tree& tree : trees) {
    for (int rank = 0; rank < static_cast<int>(tree.size()); ++rank) {
      const int parent = tree[static_cast<size_t>(rank)];
      if (parent < 0) continue;
      for (const auto& [from, to] : {std::pair(rank, parent), std::pair(parent, rank)}) {
        for (const int resource : routes.between(from, to).resources) {
          seconds[static_cast<size_t>(resource)] += 1 / rates[static_cast<size_t>(resource)];
        }
      }
    }
  }
  return *std::ranges::max_element(seconds) / static_cast<double>(trees.size());
}

int depth(const std::vector<Tree>& trees) {
  int deepest = 0;
  for (const Tree& tree : trees) deepest = std::max(deepest, depth(tree));
  return deepest;
}

/// Trees on the Fabric of a request, and how busy they make its resources.
class Trees {
 public:
  explicit Trees(const ScheduleRequest& request)
      : request_(request),
        fabric_(fabric_or_uniform(request)),
        routes_(fabric_),
        rates_(known_rates(routes_)) {}

  std::vector<Tree> single() const {
    const Order near = near_path(request_);
    std::vector<std::vector<Tree>> trees{{path(near.ranks())}, {binary_tree(near)}};
    for (int host = 0; host < num_hosts() && !fabric_.links.empty(); ++host) {
      Tree tree = link_tree(fabric_, host);
      if (!tree.empty()) trees.push_back({std::move(tree)});
    }
    return best(trees);
  }

  /// Two trees over the private links; empty if these do not reach all hosts.
  std::vector<Tree> twins() const {
    std::vector<std::vector<Tree>> pairs;
    const int step = std::max(num_hosts() / kMostRoots, 1);
    for (int first = 0; first < num_hosts() && !fabric_.links.empty(); first += step) {
      for (int second = first; second < num_hosts(); second += step) {
        const TwinTrees twins(fabric_, first, second);
        if (!twins.is_complete()) return {};
        const std::vector<int> speaker = speakers(fabric_);
        pairs.push_back({tree_of_ranks(twins.tree(0), speaker, fabric_),
                         tree_of_ranks(twins.tree(1), speaker, fabric_)});
      }
    }
    return pairs.empty() ? std::vector<Tree>{} : best(pairs);
  }

  double busiest(const std::vector<Tree>& trees) const {
    return q7x2::busiest(trees, routes_, rates_);
  }

 private:
  Tree binary_tree(const Order& near) const {
    std::vector<int> positions(near.ranks().size());
    std::iota(positions.begin(), positions.end(), 0);
    const Tree parents = binary_tree_over(positions);
    std::vector<Talk> talks;
    for (const int position : positions) {
      const int parent = parents[static_cast<size_t>(position)];
      if (parent >= 0) talks.push_back({parent, position});
    }
    return binary_tree_over(arranged(request_, near, talks).ranks());
  }

  static constexpr int kMostRoots = 8;

  int num_hosts() const { return static_cast<int>(fabric_.hosts.size()); }

  std::vector<Tree> best(const std::vector<std::vector<Tree>>& all) const {
    return *std::ranges::min_element(all, {}, [&](const std::vector<Tree>& trees) {
      return std::tuple(busiest(trees), depth(trees));
    });
  }

  const ScheduleRequest& request_;
  const Fabric fabric_;
  const Routes routes_;
  const std::vector<double> rates_;
};

/// The same tree with another root.
Tree rerooted(Tree tree, int root) {
  for (int rank = root, parent = -1; rank >= 0;) {
    parent = std::exchange(tree[static_cast<size_t>(rank)], parent);
    std::swap(rank, parent);
  }
  return tree;
}

/// An all-reduce, or one of its two halves.
Schedule generate(const ScheduleRequest& request) {
  const Trees on_fabric(request);
  std::vector<Tree> trees = request.parameter == 2 ? on_fabric.twins() : on_fabric.single();
  if (request.root >= 0) {
    for (Tree& tree : trees) tree = rerooted(std::move(tree), request.root);
  }
  const auto parts = static_cast<int>(trees.size());
  return forest_schedule(request, "ccube", branches_of(std::move(trees)), equal_parts(parts));
}

/// Two trees if they relieve the busiest wire by at least a tenth.
std::vector<int> tree_counts(const ScheduleRequest& request) {
  constexpr double kWorthIt = 0.9;
  if (request.fabric == nullptr || request.fabric->links.empty()) return {0};
  const Trees on_fabric(request);
  const std::vector<Tree> twins = on_fabric.twins();
  if (twins.empty()) return {0};
  if (on_fabric.busiest(twins) > kWorthIt * on_fabric.busiest(on_fabric.single())) return {0};
  return {0, 2};
}

}  // namespace

std::vector<Generator> ccube_generators() {
  std::vector<Generator> all;
  for (const Collective op :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    all.push_back(
        {.name = "ccube", .collective = op, .generate = generate, .parameters = tree_counts});
  }
  return all;
}

}  // namespace q7x2
