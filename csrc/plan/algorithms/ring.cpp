// Ring: each rank exchanges messages with its two neighbours only, and all links have equal loads.
//
//        part p+1          part p            Reduce-scatter: the sum of part p starts at rank p+1,
//     0 ---------> 1 ---------> 2            travels once round the ring, and ends at rank p, its
//     ^                         |            owner. Each rank adds its own contribution.
//     +---------- 3 <-----------+            All-gather: each part travels once round the ring
//                                            from its owner, and each rank copies it. Near ranks
//                                            are neighbours.
//
//   collective       steps     bytes sent by a rank    (B: the whole buffer)
//   all_reduce       2(n-1)    2 B (n-1)/n
//   reduce_scatter   n-1       B (n-1)/n
//   all_gather       n-1       B (n-1)/n
//
// It moves the least possible data, never has two senders for one receiver, and uses only links
// between neighbours: the choice for large data on networks. Its latency grows with n.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
#include <algorithm>
#include <memory>

#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// One rank's position in the ring.
struct Position {
  Position(const Order& ring, int rank)
      : order(ring),
        position(order.position_of(rank)),
        size(order.size()),
        left(part(1)),
        right(part(size - 1)) {}

  /// The part that belongs to the rank `steps` positions to the left.
  int part(int steps) const { return order.at((position + size - steps % size) % size); }

  const Order& order;
  int position;
  int size;
  int left;
  int right;
};

// In place: part q is sent in step s of the reduce-scatter and overwritten in step s of the
// all-gather, so that receive waits for that send.
void all_reduce(PlanBuilder& b, const Position& position) {
  const int n = position.size;
  std::vector<OpId> sends;
  std::vector<OpId> sums;  // sums[s]: part(s + 2), or the final own part
  for (int step = 0; step < n - 1; ++step) {
    const Block outgoing = Block::output(position.part(step + 1));
    const Block incoming = Block::output(position.part(step + 2));
    const Block scratch = Block::scratch(step % 2);
    std::vector<OpId> ready;
    if (step > 0) ready = {sums[static_cast<size_t>(step) - 1]};
    sends.push_back(b.send(position.right, outgoing, ready));
    std::vector<OpId> scratch_free;
    if (step > 1) scratch_free = {sums[static_cast<size_t>(step) - 2]};
    const OpId received = b.recv(position.left, scratch, scratch_free, incoming);
    const bool is_final = step == n - 2;
    sums.push_back(b.reduce({{scratch, incoming}}, incoming, is_final, {{received}}));
  }
  OpId ready = n > 1 ? sums.back() : 0;
  for (int step = 0; step < n - 1; ++step) {
    b.send(position.right, Block::output(position.part(step)), {{ready}});
    ready = b.recv(position.left, Block::output(position.part(step + 1)),
                   {{sends[static_cast<size_t>(step)]}});
  }
}

// The partial sum is computed in the scratch block in which it arrived, and sent from there.
void reduce_scatter(PlanBuilder& b, const Position& position) {
  const int n = position.size;
  if (n == 1) b.copy(Block::input(0), Block::output(0));
  std::vector<OpId> sends;
  OpId sum = 0;
  for (int step = 0; step < n - 1; ++step) {
    const Block outgoing = Block::input(position.part(step + 1));
    const Block incoming = Block::input(position.part(step + 2));
    const Block scratch = Block::scratch(step % 2);
    sends.push_back(
        step == 0 ? b.send(position.right, outgoing)
                  : b.send(position.right, Block::scratch((step - 1) % 2), {{sum}}, outgoing));
    std::vector<OpId> scratch_free;
    if (step > 1) scratch_free = {sends[static_cast<size_t>(step) - 1]};
    const OpId received = b.recv(position.left, scratch, scratch_free, incoming);
    const bool is_final = step == n - 2;
    sum = b.reduce({{scratch, incoming}}, is_final ? Block::output(0) : scratch, is_final,
                   {{received}}, incoming);
  }
}

void all_gather(PlanBuilder& b, const Position& position) {
  b.copy(Block::input(0), Block::output(b.header().rank));
  OpId received = 0;
  for (int step = 0; step < position.size - 1; ++step) {
    if (step == 0) {
      b.send(position.right, Block::input(0));
    } else {
      b.send(position.right, Block::output(position.part(step)), {{received}});
    }
    received = b.recv(position.left, Block::output(position.part(step + 1)));
  }
}

/// All links at once, repeated for one circulation.
Round once_round(const Order& order, double share) {
  Round round{.repeats = order.size() - 1};
  for (int position = 0; position < order.size(); ++position) {
    round.edges.push_back({order.at(position), order.at((position + 1) % order.size()), 1, share});
  }
  return round;
}

template <Collective kCollective>
Schedule generate(const ScheduleRequest& request) {
  const int n = request.world_size;
  const auto ring = std::make_shared<const Order>(near_order(request));
  Schedule schedule(request, "ring", equal_parts(n));
  if (std::ranges::is_sorted(ring->ranks())) schedule.set_turn({.ranks = 1});
  Round round = once_round(*ring, kCollective == Collective::kAllReduce ? 1.0 / n : 1);
  if (kCollective != Collective::kAllGather) {
    round.folds = true;
    round.contributions = n / 2.0;
    schedule.add_round(round);
    schedule.set_scratch_blocks(std::min(n - 1, 2));
  }
  if (kCollective != Collective::kReduceScatter) {
    round.folds = false;
    round.contributions = kCollective == Collective::kAllReduce ? n : 1;
    schedule.add_round(round);
  }
  schedule.set_program([ring](PlanBuilder& b, int rank) {
    const Position position(*ring, rank);
    if (kCollective == Collective::kAllReduce) all_reduce(b, position);
    if (kCollective == Collective::kReduceScatter) reduce_scatter(b, position);
    if (kCollective == Collective::kAllGather) all_gather(b, position);
  });
  return schedule;
}

}  // namespace

// All messages of a slice go to one neighbour, and each has its own id.
std::vector<Generator> ring_generators() {
  constexpr int kMostRanks = Plan::kMaxMessages + 1;
  constexpr int kMostRanksBothWays = Plan::kMaxMessages / 2 + 1;
  return {
      {"ring", Collective::kAllReduce, generate<Collective::kAllReduce>, false, kMostRanksBothWays},
      {"ring", Collective::kReduceScatter, generate<Collective::kReduceScatter>, false, kMostRanks},
      {.name = "ring",
       .collective = Collective::kAllGather,
       .generate = generate<Collective::kAllGather>,
       .max_world_size = kMostRanks,
       .codable = Codable::kOnAnyEdges},
  };
}

}  // namespace q7x2
