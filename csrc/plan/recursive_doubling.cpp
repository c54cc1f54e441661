// Recursive doubling: pairs exchange all they have, at distances 1, 2, 4, ...
//
//   0 <-> 1    2 <-> 3        n not a power of two: of the first 2 * (n - p) ranks, p the largest
//   0 <------> 2              power of two, each even one gives its data to its odd neighbour
//        1 <------> 3         first, and gets the result from it last.
//
//   all_reduce: log2(p) steps (and 2 more where n > p); each rank sends B log2(p) bytes.
//
// Both partners fold the lower rank's operand first, so all ranks build the same expression and end
// bit-identical. It wins for small data, where log2(n) steps matter more than bytes.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
#include <bit>

#include "plan/generators.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// The ranks that take part in the doubling, numbered 0 ... p-1 in the order of their ranks.
struct Doubling {
  explicit Doubling(int world_size)
      : size(static_cast<int>(std::bit_floor(static_cast<unsigned>(world_size)))),
        surplus(world_size - size) {}

  bool has_surplus_partner(int rank) const { return rank < 2 * surplus; }
  bool sits_out(int rank) const { return has_surplus_partner(rank) && rank % 2 == 0; }
  int index_of(int rank) const { return has_surplus_partner(rank) ? rank / 2 : rank - surplus; }
  int rank_of(int index) const { return index < surplus ? 2 * index + 1 : index + surplus; }

  int size;
  int surplus;
};

Plan all_reduce(const PlanRequest& request) {
  const Doubling doubling(request.world_size);
  const int rank = request.rank;
  const Block own = Block::input(0);
  const Block result = Block::output(0);
  PlanBuilder b(request, "recursive_doubling");

  if (doubling.sits_out(rank)) {
    const OpId given = b.send(rank + 1, own);
    b.recv(rank + 1, result, {{given}});
    return b.build();
  }

  // Each partial sum is built in the scratch block that the partner's operand arrived in. So no
  // fold waits for a send, but for the last one, which overwrites the buffer, where that was sent.
  int next_scratch = 0;
  Block sum = own;
  std::vector<OpId> sum_ready;
  if (doubling.has_surplus_partner(rank)) {
    sum = Block::scratch(next_scratch++);
    const OpId received = b.recv(rank - 1, sum, {}, own);
    sum_ready = {b.reduce({{sum, own}}, sum, false, {{received}})};
  }
  std::vector<OpId> own_sent;
  const int index = doubling.index_of(rank);
  for (int distance = 1; distance < doubling.size; distance *= 2) {
    const int partner = index ^ distance;
    const bool is_final = 2 * distance == doubling.size;
    const Block incoming = Block::scratch(next_scratch++);
    const OpId sent = b.send(doubling.rank_of(partner), sum, sum_ready, own);
    if (sum == own) own_sent = {sent};
    std::vector<OpId> operands = sum_ready;
    operands.push_back(b.recv(doubling.rank_of(partner), incoming, {}, own));
    if (is_final) operands.insert(operands.end(), own_sent.begin(), own_sent.end());
    const Block lower = partner < index ? incoming : sum;
    const Block upper = partner < index ? sum : incoming;
    const Block next = is_final ? result : incoming;
    sum_ready = {b.reduce({{lower, upper}}, next, is_final, operands, own)};
    sum = next;
  }
  if (doubling.has_surplus_partner(rank)) b.send(rank - 1, result, sum_ready);
  return b.build();
}

double all_reduce_cost(const LinkCost& link, double bytes, int n) {
  const Doubling doubling(n);
  const int steps = std::countr_zero(static_cast<unsigned>(doubling.size));
  const double exchange = link.step(1, bytes) + bytes * link.gamma;
  return steps * exchange + (doubling.surplus > 0 ? exchange + link.step(1, bytes) : 0);
}

}  // namespace

std::vector<Generator> recursive_doubling_generators() {
  return {{"recursive_doubling", Collective::kAllReduce, all_reduce, all_reduce_cost}};
}

}  // namespace q7x2
