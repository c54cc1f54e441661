// Chain: each rank has one predecessor and one successor; slices follow each other like a bucket
// brigade.
//
//   broadcast:  root -> next -> next but one -> ...
//   reduce:     root <- next <- next but one <- ...
//
//   collective   steps   bytes sent by the busiest rank
//   broadcast    n-1     B
//   reduce       n-1     B
//
// No rank sends or receives anything twice, so that the time tends to B * beta, whatever n: the
// choice for large data. The first slice pays n-1 latencies; the others follow one slice apart. The
// root's host and rack come first, so that the chain enters every other one once.
// The pipelined chain is textbook; Thakur et al. 2005 compare it with scatter + all-gather.
#include "plan/generators.h"
#include "plan/order.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

Plan generate(const PlanRequest& request) {
  const std::vector<int> order = near_order_from(request, request.root);
  const auto position = static_cast<size_t>(index_in(order, request.rank));
  Branch branch;
  if (position > 0) branch.parent = order[position - 1];
  if (position + 1 < order.size()) branch.children = {order[position + 1]};
  return forest_plan(request, "chain", {{branch}});
}

}  // namespace

std::vector<Generator> chain_generators() {
  return {
      {"chain", Collective::kBroadcast, generate},
      {"chain", Collective::kReduce, generate},
  };
}

}  // namespace q7x2
