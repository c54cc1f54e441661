// Ring: every rank talks to its two neighbours only, and each link carries the same load.
//
//        part p+1          part p            Reduce-scatter: the sum of part p starts at rank p+1,
//     0 ---------> 1 ---------> 2            travels once round the ring, each rank adds its own
//     ^                         |            contribution, and ends at rank p, its owner.
//     +---------- 3 <-----------+            All-gather: each part travels once round the ring
//                                            from its owner and is copied by everyone. Near ranks
//                                            are neighbours.
//
//   collective       steps     bytes sent by a rank    (B: the whole buffer)
//   all_reduce       2(n-1)    2 B (n-1)/n
//   reduce_scatter   n-1       B (n-1)/n
//   all_gather       n-1       B (n-1)/n
//
// It moves the least data possible, never has two senders for one receiver, and needs no more than
// neighbour links: the choice for large data on networks. Its latency grows with n.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
#include "plan/generators.h"
#include "plan/order.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

struct Ring {
  explicit Ring(const PlanRequest& request)
      : order(near_order(request)),
        position(index_in(order, request.rank)),
        size(request.world_size),
        left(part(1)),
        right(part(size - 1)) {}

  /// The part of the rank `steps` places to the left, which has the rank's number.
  int part(int steps) const {
    return order[static_cast<size_t>((position + size - steps % size) % size)];
  }

  std::vector<int> order;
  int position;
  int size;
  int left;
  int right;
};

// In place: part q is sent in step s of the reduce-scatter and overwritten in step s of the
// all-gather, so the receive of the latter waits for the send of the former.
Plan all_reduce(const PlanRequest& request) {
  const Ring ring(request);
  const int n = ring.size;
  PlanBuilder b(request, "ring", equal_parts(n));
  std::vector<OpId> sends;
  std::vector<OpId> sums;  // sums[s]: part(s + 2), or the final own part
  for (int step = 0; step < n - 1; ++step) {
    const Block outgoing = Block::output(ring.part(step + 1));
    const Block incoming = Block::output(ring.part(step + 2));
    const Block scratch = Block::scratch(step % 2);
    std::vector<OpId> ready;
    if (step > 0) ready = {sums[static_cast<size_t>(step) - 1]};
    sends.push_back(b.send(ring.right, outgoing, ready));
    std::vector<OpId> scratch_free;
    if (step > 1) scratch_free = {sums[static_cast<size_t>(step) - 2]};
    const OpId received = b.recv(ring.left, scratch, scratch_free, incoming);
    const bool is_final = step == n - 2;
    sums.push_back(b.reduce({{scratch, incoming}}, incoming, is_final, {{received}}));
  }
  OpId ready = n > 1 ? sums.back() : 0;
  for (int step = 0; step < n - 1; ++step) {
    b.send(ring.right, Block::output(ring.part(step)), {{ready}});
    ready =
        b.recv(ring.left, Block::output(ring.part(step + 1)), {{sends[static_cast<size_t>(step)]}});
  }
  return b.build();
}

// The partial sum is built in the scratch block that it arrived in, and sent from there.
Plan reduce_scatter(const PlanRequest& request) {
  const Ring ring(request);
  const int n = ring.size;
  PlanBuilder b(request, "ring");
  if (n == 1) b.copy(Block::input(0), Block::output(0));
  std::vector<OpId> sends;
  OpId sum = 0;
  for (int step = 0; step < n - 1; ++step) {
    const Block outgoing = Block::input(ring.part(step + 1));
    const Block incoming = Block::input(ring.part(step + 2));
    const Block scratch = Block::scratch(step % 2);
    sends.push_back(step == 0
                        ? b.send(ring.right, outgoing)
                        : b.send(ring.right, Block::scratch((step - 1) % 2), {{sum}}, outgoing));
    std::vector<OpId> scratch_free;
    if (step > 1) scratch_free = {sends[static_cast<size_t>(step) - 1]};
    const OpId received = b.recv(ring.left, scratch, scratch_free, incoming);
    const bool is_final = step == n - 2;
    sum = b.reduce({{scratch, incoming}}, is_final ? Block::output(0) : scratch, is_final,
                   {{received}}, incoming);
  }
  return b.build();
}

Plan all_gather(const PlanRequest& request) {
  const Ring ring(request);
  PlanBuilder b(request, "ring");
  b.copy(Block::input(0), Block::output(request.rank));
  OpId received = 0;
  for (int step = 0; step < ring.size - 1; ++step) {
    if (step == 0) {
      b.send(ring.right, Block::input(0));
    } else {
      b.send(ring.right, Block::output(ring.part(step)), {{received}});
    }
    received = b.recv(ring.left, Block::output(ring.part(step + 1)));
  }
  return b.build();
}

}  // namespace

// All messages of a slice go to one neighbour, and each has an id of its own.
std::vector<Generator> ring_generators() {
  constexpr int kMostRanks = Plan::kMaxMessages + 1;
  constexpr int kMostRanksBothWays = Plan::kMaxMessages / 2 + 1;
  return {
      {"ring", Collective::kAllReduce, all_reduce, false, kMostRanksBothWays},
      {"ring", Collective::kReduceScatter, reduce_scatter, false, kMostRanks},
      {"ring", Collective::kAllGather, all_gather, false, kMostRanks},
  };
}

}  // namespace q7x2
