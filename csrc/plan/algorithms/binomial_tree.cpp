// Binomial tree: each step doubles the number of ranks that have the data, or halves the number of
// those that still must pass it on.
//
//            0                 Positions are counted from the root, near ranks first. The parent of
//        / / | \               position v is v without its lowest set bit; its children are v + 1,
//       1 2  4  8              v + 2, v + 4, ... below that bit. A subtree is a run of positions,
//         | /|  |\\            so few edges leave a host or a rack. On the way down, the largest
//         3 5 6 ...            subtree comes first.
//
//   collective    steps              bytes sent by the busiest rank
//   broadcast     ceil(log2 n)       B ceil(log2 n), the root
//   reduce        ceil(log2 n)       B, and the root receives B ceil(log2 n)
//   all_reduce    2 ceil(log2 n)     reduce to rank 0, then broadcast
//
// It wins for small data and many ranks, if one rank alone cannot serve all. A rank folds all its
// children at once: one pass over the memory and one rounding per level.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
#include <algorithm>
#include <memory>
#include <vector>

#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

Order line_up(const ScheduleRequest& request) {
  std::vector<Talk> talks;
  for (int position = 1; position < request.world_size; ++position) {
    talks.push_back({position & (position - 1), position});
  }
  return arranged(request, near_path_from(request, std::max(request.root, 0)), talks,
                  request.root >= 0);
}

Schedule generate(const ScheduleRequest& request) {
  const auto order = std::make_shared<const Order>(line_up(request));
  return forest_schedule(request, "binomial_tree", [order](int, int rank) {
    return binomial_branch(order->ranks(), order->position_of(rank));
  });
}

}  // namespace

std::vector<Generator> binomial_tree_generators() {
  return {
      {"binomial_tree", Collective::kBroadcast, generate},
      {"binomial_tree", Collective::kReduce, generate},
      {"binomial_tree", Collective::kAllReduce, generate},
  };
}

}  // namespace q7x2
