// Direct: each rank that has data sends it to each rank that wants it, in one step.
//
//   0 --> 1, 2, 3      Pairwise order: the k-th message of a rank goes to rank + k, and its k-th
//   1 --> 2, 3, 0      receive is from rank - k, so no rank is the first target of all others.
//
//   collective    bytes sent by the busiest rank    folds
//   all_reduce    B (n-1)                           every rank all n contributions
//   reduce        B (each rank but the root)        the root all n contributions
//   broadcast     B (n-1), the root                 -
//   all_gather, gather, scatter, all_to_all         -      every part crosses one link once
//
// One step and one fold have the least possible latency: the choice for tiny data, and for small
// groups. For gather and scatter it is optimal at every size, because the root's link is the
// bottleneck. Reductions fold in rank order and round once, so all ranks end bit-identical, and
// bit-identical to every other Plan that rounds once.
#include "plan/algorithms/generators.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// One rank and its neighbours at all distances.
struct Position {
  explicit Position(const PlanBuilder& b) : rank(b.header().rank), n(b.header().world_size) {}

  int right(int distance) const { return (rank + distance) % n; }
  int left(int distance) const { return (rank + n - distance) % n; }

  int rank;
  int n;
};

// The contribution of the rank at `distance` to the left arrives in scratch distance - 1.
std::vector<Block> operands_in_rank_order(const Position& position) {
  std::vector<Block> operands;
  for (int rank = 0; rank < position.n; ++rank) {
    const int distance = (position.rank - rank + position.n) % position.n;
    operands.push_back(distance == 0 ? Block::input(0) : Block::scratch(distance - 1));
  }
  return operands;
}

// In place: the fold overwrites the block that the sends read, so it waits for them too.
void all_reduce(PlanBuilder& b, const Position& position) {
  std::vector<OpId> exchanged;
  for (int k = 1; k < position.n; ++k) {
    exchanged.push_back(b.send(position.right(k), Block::input(0)));
    exchanged.push_back(b.recv(position.left(k), Block::scratch(k - 1), {}, Block::input(0)));
  }
  if (position.n > 1) b.reduce(operands_in_rank_order(position), Block::output(0), true, exchanged);
}

void reduce(PlanBuilder& b, const Position& position) {
  if (position.rank != b.header().root) {
    b.send(b.header().root, Block::input(0));
    return;
  }
  std::vector<OpId> received;
  for (int k = 1; k < position.n; ++k) {
    received.push_back(b.recv(position.left(k), Block::scratch(k - 1), {}, Block::input(0)));
  }
  if (position.n > 1) b.reduce(operands_in_rank_order(position), Block::output(0), true, received);
}

void broadcast(PlanBuilder& b, const Position& position) {
  if (position.rank != b.header().root) {
    b.recv(b.header().root, Block::output(0));
    return;
  }
  for (int k = 1; k < position.n; ++k) b.send(position.right(k), Block::input(0));
}

void all_gather(PlanBuilder& b, const Position& position) {
  for (int k = 1; k < position.n; ++k) {
    b.send(position.right(k), Block::input(0));
    b.recv(position.left(k), Block::output(position.left(k)));
  }
  b.copy(Block::input(0), Block::output(position.rank));
}

void gather(PlanBuilder& b, const Position& position) {
  if (position.rank != b.header().root) {
    b.send(b.header().root, Block::input(0));
    return;
  }
  for (int k = 1; k < position.n; ++k) b.recv(position.left(k), Block::output(position.left(k)));
  b.copy(Block::input(0), Block::output(position.rank));
}

void scatter(PlanBuilder& b, const Position& position) {
  if (position.rank != b.header().root) {
    b.recv(b.header().root, Block::output(0));
    return;
  }
  for (int k = 1; k < position.n; ++k) b.send(position.right(k), Block::input(position.right(k)));
  b.copy(Block::input(position.rank), Block::output(0));
}

void all_to_all(PlanBuilder& b, const Position& position) {
  for (int k = 1; k < position.n; ++k) {
    b.send(position.right(k), Block::input(position.right(k)));
    b.recv(position.left(k), Block::output(position.left(k)));
  }
  b.copy(Block::input(position.rank), Block::output(position.rank));
}

template <void (*kProgram)(PlanBuilder&, const Position&)>
Schedule generate(const ScheduleRequest& request) {
  Schedule schedule(request, "direct");
  if (is_reduction(request.collective)) schedule.set_rounds_once();
  if (!is_rooted(request.collective)) schedule.set_turn({.ranks = 1});
  const Contract& contract = schedule.contract();
  schedule.add_round({.crosses = {{team_of(contract.contributors), team_of(contract.receivers)}},
                      .folds = is_reduction(request.collective),
                      .same_data = request.collective != Collective::kScatter &&
                                   request.collective != Collective::kAllToAll});
  schedule.set_program([](PlanBuilder& b, int) { kProgram(b, Position(b)); });
  return schedule;
}

// Every rank holds n - 1 whole slices of other ranks in scratch blocks.
constexpr int kMaxFoldedRanks = 64;

}  // namespace

std::vector<Generator> direct_generators() {
  return {
      {"direct", Collective::kAllReduce, generate<all_reduce>, true, kMaxFoldedRanks},
      {"direct", Collective::kReduce, generate<reduce>, true, kMaxFoldedRanks},
      {"direct", Collective::kBroadcast, generate<broadcast>},
      {.name = "direct",
       .collective = Collective::kAllGather,
       .generate = generate<all_gather>,
       .codable = Codable::kOnAnyEdges},
      {"direct", Collective::kGather, generate<gather>},
      {"direct", Collective::kScatter, generate<scatter>},
      {"direct", Collective::kAllToAll, generate<all_to_all>},
  };
}

}  // namespace q7x2
