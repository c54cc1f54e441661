// SRA, scatter-reduce-all-gather: rank p owns part p, and folds all contributions to it at once.
//
//   scatter             fold                          all-gather
//   0: part 1 -> 1      1: 0's, 1's, 2's part 1       1: sum of part 1 -> 0, 2
//   0: part 2 -> 2         in rank order, one         ...
//   1: part 0 -> 0         rounding
//   ...
//
//   collective       steps   bytes sent by the busiest rank    (B: the whole buffer)
//   all_reduce       2       2 B (n-1)/n
//   reduce_scatter   1       B (n-1)/n
//   reduce           2       B (n-1)/n scattered, B/n to the root; the root receives 2 B (n-1)/n
//
// It sends as few bytes as the ring in two steps instead of 2(n-1), and reads each contribution
// once. But n-1 ranks send to one at the same time, and it needs n-1 scratch blocks. It wins for
// medium and large data if the network tolerates the incast, and always within a host. It suits
// floats of 16 and 8 bits, since every contribution is rounded once. All ranks end bit-identical
// because each part has one owner.
// Renggli et al., "SparCML: high-performance sparse communication for machine learning", 2019
// (split all-gather); Li et al., "Scaling distributed machine learning with the parameter server",
// 2014, has the same pattern.
#include "plan/algorithms/generators.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// The first half of each collective here: all parts are sent to their owners.
struct Scatter {
  std::vector<Block> operands;  ///< for this rank's part, in rank order
  std::vector<OpId> received;
  std::vector<OpId> sent;  ///< by distance to the right, from 1 (index 0)
};

// The pairwise order: the k-th message goes to rank + k, the k-th receive is from rank - k.
Scatter add_scatter(PlanBuilder& b, int n, int rank) {
  Scatter scatter;
  for (int k = 1; k < n; ++k) {
    const int right = (rank + k) % n;
    const int left = (rank + n - k) % n;
    scatter.sent.push_back(b.send(right, Block::input(right)));
    scatter.received.push_back(b.recv(left, Block::scratch(k - 1), {}, Block::input(rank)));
  }
  for (int source = 0; source < n; ++source) {
    const int distance = (rank - source + n) % n;
    scatter.operands.push_back(distance == 0 ? Block::input(rank) : Block::scratch(distance - 1));
  }
  return scatter;
}

void add_scatter_round(Schedule& schedule, double share) {
  const auto all = team_of(schedule.contract().contributors);
  schedule.add_round({.crosses = {{all, all, 1, share}}, .folds = true});
}

Schedule reduce_scatter(const ScheduleRequest& request) {
  const int n = request.world_size;
  Schedule schedule(request, "sra");
  schedule.set_rounds_once();
  schedule.set_turn({.ranks = 1});
  add_scatter_round(schedule, 1);
  schedule.set_program([n](PlanBuilder& b, int rank) {
    if (n == 1) {
      b.copy(Block::input(0), Block::output(0));
      return;
    }
    const Scatter scatter = add_scatter(b, n, rank);
    b.reduce(scatter.operands, Block::output(0), true, scatter.received);
  });
  return schedule;
}

// In place: a part of the result may arrive only after the same part of the input was sent.
Schedule all_reduce(const ScheduleRequest& request) {
  const int n = request.world_size;
  Schedule schedule(request, "sra", equal_parts(n));
  schedule.set_rounds_once();
  schedule.set_turn({.ranks = 1});
  add_scatter_round(schedule, 1.0 / n);
  const auto all = team_of(schedule.contract().contributors);
  schedule.add_round({.crosses = {{all, all, 1, 1.0 / n}},
                      .same_data = true,
                      .contributions = static_cast<double>(n)});
  schedule.set_program([n](PlanBuilder& b, int rank) {
    if (n == 1) return;
    const Scatter scatter = add_scatter(b, n, rank);
    const OpId sum = b.reduce(scatter.operands, Block::output(rank), true, scatter.received);
    for (int k = 1; k < n; ++k) {
      const int left = (rank + n - k) % n;
      b.send((rank + k) % n, Block::output(rank), {{sum}});
      b.recv(left, Block::output(left), {{scatter.sent[static_cast<size_t>(n - k) - 1]}});
    }
  });
  return schedule;
}

// Only the root writes to its buffer; other ranks fold into a scratch block.
Schedule reduce(const ScheduleRequest& request) {
  const int n = request.world_size;
  const int root = request.root;
  Schedule schedule(request, "sra", equal_parts(n));
  schedule.set_rounds_once();
  add_scatter_round(schedule, 1.0 / n);
  schedule.add_round(
      {.crosses = {{team_of(schedule.contract().contributors), team_of({root}), 1, 1.0 / n}},
       .contributions = static_cast<double>(n)});
  schedule.set_program([n, root](PlanBuilder& b, int rank) {
    if (n == 1) return;
    const Scatter scatter = add_scatter(b, n, rank);
    if (rank != root) {
      const OpId sum = b.reduce(scatter.operands, Block::scratch(0), true, scatter.received);
      b.send(root, Block::scratch(0), {{sum}}, Block::input(rank));
      return;
    }
    b.reduce(scatter.operands, Block::output(rank), true, scatter.received);
    for (int k = 1; k < n; ++k) {
      const int left = (rank + n - k) % n;
      b.recv(left, Block::output(left), {{scatter.sent[static_cast<size_t>(n - k) - 1]}});
    }
  });
  return schedule;
}

}  // namespace

std::vector<Generator> sra_generators() {
  return {
      {.name = "sra",
       .collective = Collective::kAllReduce,
       .generate = all_reduce,
       .rounds_once = true,
       .codable = Codable::kOnAnyEdges},
      {.name = "sra",
       .collective = Collective::kReduceScatter,
       .generate = reduce_scatter,
       .rounds_once = true,
       .codable = Codable::kOnAnyEdges},
      {.name = "sra", .collective = Collective::kReduce, .generate = reduce, .rounds_once = true},
  };
}

}  // namespace q7x2
