// Direct: everybody who has data sends it straight to everybody who wants it, in one step.
//
//   0 --> 1, 2, 3      In the pairwise order: a rank's k-th message goes to rank + k and its k-th
//   1 --> 2, 3, 0      receive is from rank - k, so that no rank is everybody's first target.
//
//   collective    bytes sent by the busiest rank    folds
//   all_reduce    B (n-1)                           every rank all n contributions
//   reduce        B (each rank but the root)        the root all n contributions
//   broadcast     B (n-1), the root                 -
//   all_gather, gather, scatter, all_to_all         -      every part crosses one link once
//
// One step and one fold is the least latency there is: the choice for tiny data, and for small
// groups. For gather and scatter it is optimal at every size, the root's link being the bottleneck.
// Reductions fold in rank order and round once, so all ranks end bit-identical, and bit-identical
// to every other Plan that rounds once.
#include "plan/generators.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

int right_of(const PlanRequest& request, int distance) {
  return (request.rank + distance) % request.world_size;
}

int left_of(const PlanRequest& request, int distance) {
  return (request.rank + request.world_size - distance) % request.world_size;
}

// The contribution of the rank that sits `distance` to the left arrives in scratch distance - 1.
std::vector<Block> operands_in_rank_order(const PlanRequest& request) {
  const int n = request.world_size;
  std::vector<Block> operands;
  for (int rank = 0; rank < n; ++rank) {
    const int distance = (request.rank - rank + n) % n;
    operands.push_back(distance == 0 ? Block::input(0) : Block::scratch(distance - 1));
  }
  return operands;
}

// In place: the fold overwrites what the sends read, so it waits for them too.
Plan all_reduce(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  b.set_rounds_once();
  std::vector<OpId> exchanged;
  for (int k = 1; k < request.world_size; ++k) {
    exchanged.push_back(b.send(right_of(request, k), Block::input(0)));
    exchanged.push_back(b.recv(left_of(request, k), Block::scratch(k - 1), {}, Block::input(0)));
  }
  if (request.world_size > 1) {
    b.reduce(operands_in_rank_order(request), Block::output(0), true, exchanged);
  }
  return b.build();
}

Plan reduce(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  b.set_rounds_once();
  if (request.rank != request.root) {
    b.send(request.root, Block::input(0));
    return b.build();
  }
  std::vector<OpId> received;
  for (int k = 1; k < request.world_size; ++k) {
    received.push_back(b.recv(left_of(request, k), Block::scratch(k - 1), {}, Block::input(0)));
  }
  if (request.world_size > 1) {
    b.reduce(operands_in_rank_order(request), Block::output(0), true, received);
  }
  return b.build();
}

Plan broadcast(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  if (request.rank != request.root) {
    b.recv(request.root, Block::output(0));
    return b.build();
  }
  for (int k = 1; k < request.world_size; ++k) b.send(right_of(request, k), Block::input(0));
  return b.build();
}

Plan all_gather(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  for (int k = 1; k < request.world_size; ++k) {
    b.send(right_of(request, k), Block::input(0));
    b.recv(left_of(request, k), Block::output(left_of(request, k)));
  }
  b.copy(Block::input(0), Block::output(request.rank));
  return b.build();
}

Plan gather(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  if (request.rank != request.root) {
    b.send(request.root, Block::input(0));
    return b.build();
  }
  for (int k = 1; k < request.world_size; ++k) {
    b.recv(left_of(request, k), Block::output(left_of(request, k)));
  }
  b.copy(Block::input(0), Block::output(request.rank));
  return b.build();
}

Plan scatter(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  if (request.rank != request.root) {
    b.recv(request.root, Block::output(0));
    return b.build();
  }
  for (int k = 1; k < request.world_size; ++k) {
    b.send(right_of(request, k), Block::input(right_of(request, k)));
  }
  b.copy(Block::input(request.rank), Block::output(0));
  return b.build();
}

Plan all_to_all(const PlanRequest& request) {
  PlanBuilder b(request, "direct");
  for (int k = 1; k < request.world_size; ++k) {
    b.send(right_of(request, k), Block::input(right_of(request, k)));
    b.recv(left_of(request, k), Block::output(left_of(request, k)));
  }
  b.copy(Block::input(request.rank), Block::output(request.rank));
  return b.build();
}

// Every rank holds n - 1 whole slices of the others in scratch blocks.
constexpr int kMaxFoldedRanks = 64;

}  // namespace

std::vector<Generator> direct_generators() {
  return {
      {"direct", Collective::kAllReduce, all_reduce, true, kMaxFoldedRanks},
      {"direct", Collective::kReduce, reduce, true, kMaxFoldedRanks},
      {"direct", Collective::kBroadcast, broadcast},
      {"direct", Collective::kAllGather, all_gather},
      {"direct", Collective::kGather, gather},
      {"direct", Collective::kScatter, scatter},
      {"direct", Collective::kAllToAll, all_to_all},
  };
}

}  // namespace q7x2
