// MultiTree: one tree a rank, all of them drawn at the same time, step by step, so that in each
// step a link carries one message of one tree.
//
//   step 1   tree 0: 0 -> 1    tree 1: 1 -> 2    tree 2: 2 -> 3    tree 3: 3 -> 0
//   step 2   tree 0: 0 -> 2    tree 1: 1 -> 3    tree 2: 2 -> 0    tree 3: 3 -> 1      on one
//   switch step 3   ...
//
//   collective       steps (n ranks, one switch)    bytes sent by a rank    (B: the whole buffer)
//   all_reduce       2 (n-1)                        2 B (n-1)/n
//   reduce_scatter   n-1                            B (n-1)/n
//   all_gather       n-1                            B (n-1)/n
//
// The trees are drawn from their roots outwards. In each step every resource of the network (a NIC,
// a cable between racks, a private link) has room for as many messages as it is faster than the
// slowest one; the trees take turns to add the fastest edge that there is still room for, from a
// rank that had the data before this step, the nearest to the root first. So trees grow along what
// is fast and cross what is slow in turn. Where the step of an edge was s on the way down, it is
// as far from the end on the way up.
//
// On one switch the trees are stars that serve their leaves in different order, as in SRA; it wins
// on networks with private links or racks, where others send through the slow parts more often or
// at the same time.
// Huang et al., "Communication algorithm-architecture co-design for distributed deep learning",
// ISCA 2021.
#include <algorithm>
#include <tuple>

#include "fabric/fabric.h"
#include "plan/generators.h"
#include "plan/network.h"
#include "plan/order.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

/// Room for messages in one step: of the Fabric's resources, and of each rank's core, which moves
/// what does not leave the host.
class Room {
 public:
  explicit Room(const Fabric& fabric) : num_ranks_(static_cast<size_t>(fabric.world_size())) {
    const Routes routes(fabric);
    std::vector<double> rates = known_rates(routes);
    const size_t first_core = rates.size();
    const double fastest = *std::ranges::max_element(rates);
    for (size_t rank = 0; rank < num_ranks_; ++rank) {
      const double copy_rate = fabric.copy_rate_of(static_cast<int>(rank));
      rates.resize(rates.size() + 2, copy_rate > 0 ? copy_rate : fastest);
    }
    const double slowest = *std::ranges::min_element(rates);
    for (const double rate : rates) room_per_step_.push_back(rate / slowest);
    room_.resize(rates.size());
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

  /// What is left of one step's room is of no use in the next, apart from fractions of a message.
  void begin_step() {
    for (size_t r = 0; r < room_.size(); ++r) {
      room_[r] = std::min(room_[r], 1 - kTolerance) + room_per_step_[r];
    }
  }

  bool fits(int from, int to) const {
    return std::ranges::all_of(routes_[index(from, to)],
                               [&](size_t r) { return room_[r] >= 1 - kTolerance; });
  }

  void take(int from, int to) {
    for (const size_t r : routes_[index(from, to)]) room_[r] -= 1;
  }

  double rate(int from, int to) const { return rates_[index(from, to)]; }

 private:
  static constexpr double kTolerance = 1e-9;

  size_t index(int from, int to) const {
    return static_cast<size_t>(from) * num_ranks_ + static_cast<size_t>(to);
  }

  size_t num_ranks_;
  std::vector<std::vector<size_t>> routes_;  // by source and destination
  std::vector<double> rates_;                // the same
  std::vector<double> room_per_step_;        // by resource
  std::vector<double> room_;
};

/// Trees by their roots' ranks.
std::vector<Tree> draw_trees(const ScheduleRequest& request) {
  const int n = request.world_size;
  const Fabric fabric = fabric_or_uniform(request);
  Room room(fabric);
  const std::vector<int> order = near_order(request).ranks();

  // Where a rank sends first: along fast routes, and every rank to another one.
  std::vector<std::vector<int>> targets(static_cast<size_t>(n));
  for (int position = 0; position < n; ++position) {
    const int rank = order[static_cast<size_t>(position)];
    std::vector<int>& list = targets[static_cast<size_t>(rank)];
    for (int k = 1; k < n; ++k) list.push_back(order[static_cast<size_t>((position + k) % n)]);
    std::ranges::stable_sort(list, std::greater<>(),
                             [&](int target) { return room.rate(rank, target); });
  }

  std::vector<Tree> trees(static_cast<size_t>(n), Tree(static_cast<size_t>(n), -1));
  std::vector<std::vector<int>> members;  // in the order they joined
  for (int root = 0; root < n; ++root) members.push_back({root});

  // One edge for a tree: the fastest, from the member that joined first.
  const auto grow = [&](size_t root, size_t members_before) {
    std::tuple<double, int, int> best{-1, 0, 0};
    for (size_t i = 0; i < members_before; ++i) {
      const int from = members[root][i];
      for (const int to : targets[static_cast<size_t>(from)]) {
        const double rate = room.rate(from, to);
        if (rate <= std::get<0>(best)) break;
        const bool joined =
            to == static_cast<int>(root) || trees[root][static_cast<size_t>(to)] >= 0;
        if (!joined && room.fits(from, to)) best = {rate, from, to};
      }
    }
    const auto& [rate, from, to] = best;
    if (rate < 0) return false;
    room.take(from, to);
    trees[root][static_cast<size_t>(to)] = from;
    members[root].push_back(to);
    return true;
  };

  size_t edges_left = static_cast<size_t>(n) * static_cast<size_t>(n - 1);
  for (size_t step = 0; edges_left > 0; ++step) {
    room.begin_step();
    std::vector<size_t> members_before;
    for (const auto& tree : members) members_before.push_back(tree.size());
    for (bool grown = true; grown;) {
      grown = false;
      for (size_t turn = 0; turn < trees.size(); ++turn) {
        const auto root = static_cast<size_t>(order[(turn + step) % trees.size()]);
        if (!grow(root, members_before[root])) continue;
        grown = true;
        --edges_left;
      }
    }
  }
  return trees;
}

Schedule generate(const ScheduleRequest& request) {
  return forest_schedule(request, "multitree", branches_of(draw_trees(request)),
                         equal_parts(request.world_size));
}

/// Drawing the trees takes time with the fourth power of the ranks.
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
