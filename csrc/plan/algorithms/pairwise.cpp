// Pairwise exchange: all-to-all in n-1 steps, a permutation in each.
//
//   step 1:  0 -> 1 -> 2 -> 3 -> 0      In step k each rank sends to rank + k and receives from
//   step 2:  0 <-> 2    1 <-> 3         rank - k, so that every rank has one sender at a time.
//   step 3:  0 -> 3 -> 2 -> 1 -> 0
//
//   all_to_all: n-1 steps, every part crosses one link once.
//
// A step begins when the send and the receive of the previous step are complete. So no rank runs
// ahead and becomes the second sender to a slower one. It wins for large parts on networks, where
// many senders for one receiver (incast) overflow switch buffers; `direct`, which posts everything
// at once, wins for small parts, because it avoids n-1 consecutive latencies. Receives are posted
// in advance, directly into the output.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
#include <algorithm>
#include <vector>

#include "plan/algorithms/generators.h"

namespace q7x2 {

namespace {

Schedule all_to_all(const ScheduleRequest& request) {
  const int n = request.world_size;
  Schedule schedule(request, "pairwise");
  schedule.set_turn({.ranks = 1});
  const auto all = team_of(schedule.contract().contributors);
  schedule.add_round({.crosses = {{all, all}}, .turns = std::max(n - 1, 1)});
  schedule.set_program([n](PlanBuilder& b, int rank) {
    std::vector<PlanBuilder::OpId> previous_step;
    for (int k = 1; k < n; ++k) {
      const int right = (rank + k) % n;
      const int left = (rank + n - k) % n;
      const auto sent = b.send(right, Block::input(right), previous_step);
      const auto received = b.recv(left, Block::output(left));
      previous_step = {sent, received};
    }
    b.copy(Block::input(rank), Block::output(rank));
  });
  return schedule;
}

}  // namespace

std::vector<Generator> pairwise_generators() {
  return {{"pairwise", Collective::kAllToAll, all_to_all}};
}

}  // namespace q7x2
