// Dissemination: in round k each rank tells rank + 2^k which ranks it has heard of so far.
//
//   round 0:  0 -> 1 -> 2 -> 3 -> 4 -> 0      After round k a rank has heard, directly or through
//   round 1:  0 -> 2 -> 4 -> 1 -> 3 -> 0      others, of the 2^(k+1) - 1 ranks to its left; after
//   round 2:  0 -> 4 -> 3 -> 2 -> 1 -> 0      ceil(log2 n) rounds, of all ranks.
//
//   barrier: ceil(log2 n) rounds, one message of one byte each. All ranks and all n are alike.
//
// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
#include <bit>
#include <utility>
#include <vector>

#include "plan/algorithms/generators.h"

namespace q7x2 {

namespace {

Schedule barrier(const ScheduleRequest& request) {
  const int n = request.world_size;
  Schedule schedule(request, "dissemination");
  schedule.set_turn({.ranks = 1});
  for (int distance = 1; distance < n; distance *= 2) {
    Round round;
    for (int rank = 0; rank < n; ++rank) round.edges.push_back({rank, (rank + distance) % n});
    schedule.add_round(std::move(round));
  }
  schedule.set_scratch_blocks(std::bit_width(static_cast<unsigned>(n - 1)));
  schedule.set_program([n](PlanBuilder& b, int rank) {
    std::vector<PlanBuilder::OpId> heard;
    int step = 0;
    for (int distance = 1; distance < n; distance *= 2) {
      b.send((rank + distance) % n, Block::input(0), heard);
      heard.push_back(
          b.recv((rank + n - distance) % n, Block::scratch(step++), {}, Block::input(0)));
    }
  });
  return schedule;
}

}  // namespace

std::vector<Generator> dissemination_generators() {
  return {{"dissemination", Collective::kBarrier, barrier}};
}

}  // namespace q7x2
