// MultiTree: one tree per rank. All trees are constructed at the same time, step by step, so that
// in each step a link carries one message of one tree.
//
//   step 1   tree 0: 0 -> 1    tree 1: 1 -> 2    tree 2: 2 -> 3    tree 3: 3 -> 0
//   step 2   tree 0: 0 -> 2    tree 1: 1 -> 3    tree 2: 2 -> 0    tree 3: 3 -> 1
//   step 3   ...                                                              (on one switch)
//
//   collective       steps (n ranks, one switch)    bytes sent by a rank    (B: the whole buffer)
//   all_reduce       2 (n-1)                        2 B (n-1)/n
//   reduce_scatter   n-1                            B (n-1)/n
//   all_gather       n-1                            B (n-1)/n
//
// The trees are constructed from their roots outwards, within a budget: each resource of the
// network (a NIC, a cable between racks, a private link) may pass as many messages as it moves in a
// given time. In each step the trees take turns. Each adds the fastest edge that is still within
// the budget. The edge starts from a rank that had the data before this step, the nearest to the
// root first; among several edges, the least used one is taken. A tree does not use an edge to a
// rank that another member reaches over a faster route. The time is doubled until all trees are
// complete, and then refined by bisection. So a slow switch next to fast private links gets the few
// messages that it passes in the time of the links, or none.
//
// On one switch the trees are stars that serve their leaves in different order, as in SRA. It wins
// on tori, cubes and other networks of private links, on which many ranks have several paths. The
// simulator compared it with Blink, the best other algorithm there (16 hosts as 4 x 4, all_reduce
// of 16 MiB). MultiTree and Blink take 367 and 369 ms if the switch has a quarter of a link's rate,
// 71 and 85 ms if it has a fortieth, 270 and 377 ms if it has the same. With slow cables between
// racks hierarchical is better: 2.1 s instead of 2.4 s for four racks of four.
// Huang et al., "Communication algorithm-architecture co-design for distributed deep learning",
// ISCA 2021.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/cost/host_distances.h"
#include "plan/cost/network.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// Number of messages that each resource may pass until all trees are complete. Resources are those
/// of the Fabric, and each rank's core, which moves data within the host. All messages have the
/// same length, and the unit of time is the time in which a rate of 1 moves one.
class Budget {
 public:
  explicit Budget(const Fabric& fabric) : num_ranks_(static_cast<size_t>(fabric.world_size())) {
    const Routes routes(fabric);
    budgeted_ = known_rates(routes);
    const size_t first_core = budgeted_.size();
    const double fastest = *std::ranges::max_element(budgeted_);
    for (size_t rank = 0; rank < num_ranks_; ++rank) {
      const double copy_rate = fabric.copy_rate_of(static_cast<int>(rank));
      budgeted_.resize(budgeted_.size() + 2, copy_rate > 0 ? copy_rate : fastest);
    }
    room_.resize(budgeted_.size());
    for (size_t from = 0; from < num_ranks_; ++from) {
      for (size_t to = 0; to < num_ranks_; ++to) {
        const auto& route = routes.between(static_cast<int>(from), static_cast<int>(to));
        routes_.push_back({route.resources.begin(), route.resources.end()});
        routes_.back().insert(routes_.back().end(),
                              {first_core + 2 * from, first_core + 2 * to + 1});
        rates_.push_back(route.rate);
      }
    }
  }

  /// Starts again: nothing has passed, and `time` is left.
  void begin(double time) {
    for (size_t r = 0; r < room_.size(); ++r) room_[r] = budgeted_[r] * time;
  }

  bool fits(int from, int to) const {
    return std::ranges::all_of(routes_[index(from, to)],
                               [&](size_t r) { return room_[r] >= 1 - kTolerance; });
  }

  void take(int from, int to) {
    for (const size_t r : routes_[index(from, to)]) room_[r] -= 1;
  }

  /// The share of its budget that the fullest resource of the route has left.
  double left(int from, int to, double time) const {
    double least = 1;
    for (const size_t r : routes_[index(from, to)]) {
      least = std::min(least, room_[r] / (budgeted_[r] * time));
    }
    return least;
  }

  double rate(int from, int to) const { return rates_[index(from, to)]; }

  /// The time in which the fastest resource passes one message, a lower bound.
  double least_time() const { return 1 / *std::ranges::max_element(budgeted_); }

 private:
  static constexpr double kTolerance = 1e-9;

  size_t index(int from, int to) const {
    return static_cast<size_t>(from) * num_ranks_ + static_cast<size_t>(to);
  }

  size_t num_ranks_;
  std::vector<std::vector<size_t>> routes_;  // by source and destination
  std::vector<double> rates_;                // by source and destination
  std::vector<double> budgeted_;             // by resource: messages per unit of time
  std::vector<double> room_;  // by resource: number of messages that it can still pass
};

/// Constructs one tree per rank within a budget.
class Drawing {
 public:
  /// `order`: of the ranks; decides between equally good edges.
  Drawing(const ScheduleRequest& request, std::vector<int> order)
      : num_ranks_(request.world_size),
        budget_(fabric_or_uniform(request)),
        order_(std::move(order)),
        targets_(order_.size()) {
    // The order of a rank's targets: fast routes first, and different for all ranks.
    for (int position = 0; position < num_ranks_; ++position) {
      const int rank = order_[static_cast<size_t>(position)];
      std::vector<int>& list = targets_[static_cast<size_t>(rank)];
      for (int k = 1; k < num_ranks_; ++k) {
        list.push_back(order_[static_cast<size_t>((position + k) % num_ranks_)]);
      }
      std::ranges::stable_sort(list, std::greater<>(),
                               [&](int target) { return budget_.rate(rank, target); });
    }
  }

  /// Trees by their roots' ranks, in about the least time in which they can be completed.
  std::vector<Tree> best() {
    double time = budget_.least_time();
    while (!draw(time)) time *= 2;
    std::vector<Tree> trees = trees_;
    double too_short = time / 2;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (too_short + time) / 2;
      if (draw(middle)) {
        time = middle;
        trees = trees_;
      } else {
        too_short = middle;
      }
    }
    best_time_ = time;
    return trees;
  }

  /// The time of the trees that `best` returned.
  double best_time() const { return best_time_; }

 private:
  /// The last one changes the time by at most a thirtieth.
  static constexpr int kHalvings = 5;

  /// Whether all trees are complete within `time`.
  bool draw(double time) {
    const auto n = static_cast<size_t>(num_ranks_);
    budget_.begin(time);
    time_ = time;
    trees_.assign(n, Tree(n, -1));
    members_.clear();
    for (int root = 0; root < num_ranks_; ++root) members_.push_back({root});
    size_t edges_left = n * (n - 1);
    for (size_t step = 0; edges_left > 0; ++step) {
      const size_t before = edges_left;
      std::vector<size_t> members_before;
      for (const auto& tree : members_) members_before.push_back(tree.size());
      for (bool grown = true; grown;) {
        grown = false;
        for (size_t turn = 0; turn < n; ++turn) {
          const auto root = static_cast<size_t>(order_[(turn + step) % n]);
          if (!grow(root, members_before[root])) continue;
          grown = true;
          --edges_left;
        }
      }
      if (edges_left == before) return false;
    }
    return true;
  }

  /// Whether some member, which may have joined in this step, has a faster route to the rank with
  /// room on it.
  bool is_reached_faster(size_t root, int to, double rate) const {
    return std::ranges::any_of(members_[root], [&](int member) {
      return budget_.rate(member, to) > rate && budget_.fits(member, to);
    });
  }

  /// Adds one edge to a tree: the fastest one, from the member that joined first; among several,
  /// the least used.
  bool grow(size_t root, size_t members_before) {
    std::tuple<double, double, int, int> best{-1, 0, 0, 0};
    for (size_t i = 0; i < members_before; ++i) {
      const int from = members_[root][i];
      for (const int to : targets_[static_cast<size_t>(from)]) {
        const double rate = budget_.rate(from, to);
        if (rate < std::get<0>(best)) break;
        const bool joined =
            to == static_cast<int>(root) || trees_[root][static_cast<size_t>(to)] >= 0;
        if (joined || !budget_.fits(from, to) || is_reached_faster(root, to, rate)) continue;
        const double left = budget_.left(from, to, time_);
        if (rate > std::get<0>(best) || left > std::get<1>(best)) {
          best = {rate, left, from, to};
        }
      }
    }
    const auto& [rate, left, from, to] = best;
    if (rate < 0) return false;
    budget_.take(from, to);
    trees_[root][static_cast<size_t>(to)] = from;
    members_[root].push_back(to);
    return true;
  }

  int num_ranks_;
  Budget budget_;
  std::vector<int> order_;
  std::vector<std::vector<int>> targets_;  // by rank
  double time_ = 0;
  double best_time_ = 0;
  std::vector<Tree> trees_;
  std::vector<std::vector<int>> members_;  // by root, in the order in which they joined
};

/// More ranks than this are looked at in one order only.
constexpr int kManyRanks = 16;
/// No more than this are looked at in the near order from each of them on, too.
constexpr size_t kFewRanks = 8;

/// The near order. For few ranks that are not all equally near each other also those that are near
/// all others first, and both reversed.
std::vector<std::vector<int>> orders(const ScheduleRequest& request) {
  std::vector<int> ranks = near_order(request).ranks();
  std::vector<std::vector<int>> all{ranks};
  if (request.world_size > kManyRanks || request.fabric == nullptr) return all;
  if (request.fabric->racks.size() < 2 && !HostDistances::may_differ(*request.fabric)) return all;
  all.emplace_back(ranks.rbegin(), ranks.rend());
  const HostDistances distances(*request.fabric);
  std::ranges::stable_sort(ranks, {}, [&](int rank) {
    return distances.to_all(request.fabric->host_of[static_cast<size_t>(rank)]);
  });
  if (ranks != all[0]) {
    all.push_back(ranks);
    all.emplace_back(ranks.rbegin(), ranks.rend());
  }
  for (size_t i = 1; i < ranks.size() && ranks.size() <= kFewRanks; ++i) {
    all.push_back(all[0]);
    std::ranges::rotate(all.back(), all.back().begin() + static_cast<std::ptrdiff_t>(i));
  }
  return all;
}

/// The trees of the order with which they take the least time.
std::vector<Tree> best_trees(const ScheduleRequest& request) {
  std::vector<Tree> best;
  double least = std::numeric_limits<double>::infinity();
  for (std::vector<int>& order : orders(request)) {
    Drawing drawing(request, std::move(order));
    std::vector<Tree> trees = drawing.best();
    if (drawing.best_time() >= least) continue;
    least = drawing.best_time();
    best = std::move(trees);
  }
  return best;
}

Schedule generate(const ScheduleRequest& request) {
  return forest_schedule(request, "multitree", branches_of(best_trees(request)),
                         equal_parts(request.world_size));
}

/// The time for constructing the trees grows with the fourth power of the number of ranks.
constexpr int kMaxRanks = 32;

Generator entry(Collective collective) {
  return {.name = "multitree",
          .collective = collective,
          .generate = generate,
          .max_world_size = kMaxRanks};
}

}  // namespace

std::vector<Generator> multitree_generators() {
  return {entry(Collective::kAllReduce), entry(Collective::kReduceScatter),
          entry(Collective::kAllGather)};
}

}  // namespace q7x2
