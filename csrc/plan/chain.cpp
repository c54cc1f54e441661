// Chain: each rank has one predecessor and one successor; slices follow each other like a bucket
// brigade.
//
//   broadcast:  root -> root+1 -> root+2 -> ...      reduce:  ... -> root+2 -> root+1 -> root
//
//   collective   steps   bytes sent by the busiest rank
//   broadcast    n-1     B
//   reduce       n-1     B
//
// No rank sends or receives anything twice, so that the time tends to B * beta, whatever n: the
// choice for large data. The first slice pays n-1 latencies; the others follow one slice apart.
// The pipelined chain is textbook; Thakur et al. 2005 compare it with scatter + all-gather.
#include <algorithm>

#include "plan/generators.h"

namespace q7x2 {

namespace {

/// A rank's neighbours towards the root and away from it, -1 where there are none.
struct Chain {
  explicit Chain(const PlanRequest& request) {
    const int n = request.world_size;
    const int position = (request.rank - request.root + n) % n;
    if (position > 0) towards_root = (request.rank + n - 1) % n;
    if (position < n - 1) away = (request.rank + 1) % n;
  }

  int towards_root = -1;
  int away = -1;
};

Plan broadcast(const PlanRequest& request) {
  const Chain chain(request);
  PlanBuilder b(request, "chain");
  std::vector<PlanBuilder::OpId> ready;
  if (chain.towards_root >= 0) ready = {b.recv(chain.towards_root, Block::output(0))};
  if (chain.away >= 0) b.send(chain.away, Block::output(0), ready);
  return b.build();
}

// Only the root writes to its buffer: the others fold into the block that the partial sum came in.
Plan reduce(const PlanRequest& request) {
  const Chain chain(request);
  const bool is_root = chain.towards_root < 0;
  const Block own = Block::input(0);
  PlanBuilder b(request, "chain");
  Block sum = own;
  std::vector<PlanBuilder::OpId> ready;
  if (chain.away >= 0) {
    const Block partial = Block::scratch(0);
    const auto received = b.recv(chain.away, partial, {}, own);
    sum = is_root ? Block::output(0) : partial;
    ready = {b.reduce({{partial, own}}, sum, is_root, {{received}}, own)};
  }
  if (!is_root) b.send(chain.towards_root, sum, ready, own);
  return b.build();
}

// About what the Planner cuts medium data into; longer slices come only with longer data.
constexpr double kSliceBytes = 64 * 1024;

double broadcast_cost(const LinkCost& link, double bytes, int n) {
  const double first = std::min(bytes, kSliceBytes);
  return (n - 1) * link.step(1, first) + (bytes - first) * link.beta;
}

double reduce_cost(const LinkCost& link, double bytes, int n) {
  const double first = std::min(bytes, kSliceBytes);
  return broadcast_cost(link, bytes, n) + (bytes + (n - 2) * first) * link.gamma;
}

}  // namespace

std::vector<Generator> chain_generators() {
  return {
      {"chain", Collective::kBroadcast, broadcast, broadcast_cost},
      {"chain", Collective::kReduce, reduce, reduce_cost},
  };
}

}  // namespace q7x2
