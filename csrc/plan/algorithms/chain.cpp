// Chain: each rank has one predecessor and one successor; slices follow each other in a pipeline.
//
//   broadcast:  root -> next -> next but one -> ...
//   reduce:     root <- next <- next but one <- ...
//
//   collective   steps   bytes sent by the busiest rank
//   broadcast    n-1     B
//   reduce       n-1     B
//
// No rank sends or receives anything twice, so the time approaches B * beta for any n: the choice
// for large data. The first slice takes n-1 latencies; the others follow at a distance of one
// slice. The root's host and rack come first, so that the chain enters every other one only once.
// The pipelined chain is textbook; Thakur et al. 2005 compare it with scatter + all-gather.
#include <memory>

#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

Schedule generate(const ScheduleRequest& request) {
  const auto order = std::make_shared<const Order>(near_path_from(request, request.root));
  return forest_schedule(request, "chain", [order](int, int rank) {
    const int position = order->position_of(rank);
    Branch branch;
    if (position > 0) branch.parent = order->at(position - 1);
    if (position + 1 < order->size()) branch.children = {order->at(position + 1)};
    return branch;
  });
}

}  // namespace

std::vector<Generator> chain_generators() {
  return {
      {"chain", Collective::kBroadcast, generate},
      {"chain", Collective::kReduce, generate},
  };
}

}  // namespace q7x2
