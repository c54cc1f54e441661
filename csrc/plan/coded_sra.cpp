// Coded SRA: scatter-reduce-all-gather with compressed messages.
//
//   encode              scatter           fold                           all-gather        decode
//   0: part 1 -> c      0: c -> 1         1: decode-add c of 0, 2        1: C -> 0, 2      all: C
//   0: part 2 -> c'     0: c' -> 2           to its own part 1,
//   ...                                      encode the sum -> C
//
//   collective       steps   bytes sent by the busiest rank    (c: coded / dense size)
//   all_reduce       2       2 c B (n-1)/n
//   reduce_scatter   1       c B (n-1)/n
//   all_gather       1       c B (n-1), B being one rank's part
//
// What a codec loses must not be lost again at every hop, as it would be around a ring: every
// contribution is encoded once, and every sum once, by its owner, who adds in fp32 in rank order.
// The owner decodes its own message like everybody else, so all ranks end bit-identical.
// Errors that a rank keeps for an element are those of its contribution, or of the sum if it owns
// the element; one buffer holds both.
// Renggli et al., "SparCML: high-performance sparse communication for machine learning", 2019;
// Tang et al., "DoubleSqueeze: parallel stochastic gradient descent with double-pass error-
// compensated compression", 2019.
#include "plan/generators.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

constexpr int kMaxRanks = Plan::kMaxMessages / 2;

/// What this rank has of its own part: its contribution, and coded blocks in rank order.
struct Scatter {
  std::vector<Block> operands;
  std::vector<OpId> received;
  std::vector<OpId> sent;  ///< by distance to the right, from 1 (index 0)
};

// The part for the rank at distance k lies in coded block k - 1; what comes from distance k to the
// left, in coded block n - 2 + k.
Scatter add_scatter(PlanBuilder& b, const PlanRequest& request) {
  const int n = request.world_size;
  const int rank = request.rank;
  Scatter scatter;
  for (int k = 1; k < n; ++k) {
    const int right = (rank + k) % n;
    const int left = (rank + n - k) % n;
    const Block message = Block::coded(k - 1);
    const OpId coded = b.copy(Block::input(right), message);
    scatter.sent.push_back(b.send(right, message, {{coded}}, Block::input(right)));
    scatter.received.push_back(b.recv(left, Block::coded(n - 2 + k), {}, Block::input(rank)));
  }
  for (int source = 0; source < n; ++source) {
    const int distance = (rank - source + n) % n;
    scatter.operands.push_back(distance == 0 ? Block::input(rank) : Block::coded(n - 2 + distance));
  }
  return scatter;
}

Plan all_reduce(const PlanRequest& request) {
  const int n = request.world_size;
  const int rank = request.rank;
  PlanBuilder b(request, "coded_sra", equal_parts(n));
  if (n == 1) return b.build();
  const Scatter scatter = add_scatter(b, request);
  const Block total = Block::coded(2 * n - 2);
  const OpId sum = b.reduce(scatter.operands, total, true, scatter.received, Block::input(rank));
  b.copy(total, Block::output(rank), {{sum}});
  for (int k = 1; k < n; ++k) {
    const int left = (rank + n - k) % n;
    b.send((rank + k) % n, total, {{sum}}, Block::input(rank));
    // Where this rank's part of `left` has been, which has left by then.
    const Block slot = Block::coded(n - k - 1);
    const OpId sent = scatter.sent[static_cast<size_t>(n - k) - 1];
    const OpId got = b.recv(left, slot, {{sent}}, Block::input(left));
    b.copy(slot, Block::output(left), {{got}});
  }
  return b.build();
}

Plan reduce_scatter(const PlanRequest& request) {
  PlanBuilder b(request, "coded_sra");
  if (request.world_size == 1) {
    b.copy(Block::input(0), Block::output(0));
    return b.build();
  }
  const Scatter scatter = add_scatter(b, request);
  b.reduce(scatter.operands, Block::output(0), true, scatter.received, Block::input(request.rank));
  return b.build();
}

Plan all_gather(const PlanRequest& request) {
  const int n = request.world_size;
  const int rank = request.rank;
  PlanBuilder b(request, "coded_sra");
  if (n == 1) {
    b.copy(Block::input(0), Block::output(0));
    return b.build();
  }
  const Block message = Block::coded(0);
  const OpId coded = b.copy(Block::input(0), message);
  b.copy(message, Block::output(rank), {{coded}});
  for (int k = 1; k < n; ++k) {
    const int left = (rank + n - k) % n;
    b.send((rank + k) % n, message, {{coded}}, Block::input(0));
    const OpId got = b.recv(left, Block::coded(k), {}, Block::output(left));
    b.copy(Block::coded(k), Block::output(left), {{got}});
  }
  return b.build();
}

Generator entry(Collective collective, Plan (*generate)(const PlanRequest&)) {
  return {.name = "coded_sra",
          .collective = collective,
          .generate = generate,
          .max_world_size = kMaxRanks,
          .coded = true};
}

}  // namespace

std::vector<Generator> coded_sra_generators() {
  return {entry(Collective::kAllReduce, all_reduce),
          entry(Collective::kReduceScatter, reduce_scatter),
          entry(Collective::kAllGather, all_gather)};
}

}  // namespace q7x2
