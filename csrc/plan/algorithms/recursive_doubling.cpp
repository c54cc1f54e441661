// Recursive doubling: pairs exchange all their data, at distances 1, 2, 4, ...
//
//   0 <-> 1    2 <-> 3        If n is not a power of two: p is the largest power of two. Of the
//   0 <------> 2              first 2 * (n - p) ranks, each even one first gives its data to its
//        1 <------> 3         odd neighbour, and gets the result from it last. Near ranks pair up.
//
//   all_reduce: log2(p) steps (and 2 more if n > p); each rank sends B log2(p) bytes.
//
// Both partners fold the operand of the lower position first, so all ranks evaluate the same
// expression and end bit-identical. It wins for small data, if log2(n) steps matter more than
// bytes.
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
#include "plan/algorithms/recursive_doubling.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <utility>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"

namespace q7x2 {

namespace {

/// The ranks that take part in the doubling, numbered 0 ... size-1 in the team's order.
struct Doubling {
  explicit Doubling(int team_size)
      : size(static_cast<int>(std::bit_floor(static_cast<unsigned>(team_size)))),
        surplus(team_size - size) {}

  bool has_surplus_partner(int position) const { return position < 2 * surplus; }
  bool sits_out(int position) const { return has_surplus_partner(position) && position % 2 == 0; }
  int index_of(int position) const {
    return has_surplus_partner(position) ? position / 2 : position - surplus;
  }
  int position_of(int index) const { return index < surplus ? 2 * index + 1 : index + surplus; }

  int size;
  int surplus;
};

/// Which ranks exchange messages, if the team has these positions of a row.
std::vector<Talk> doubling_talks(const std::vector<int>& positions) {
  std::vector<Talk> talks;
  for (const Round& round : doubling_rounds(positions, 1, 1)) {
    for (const Edge& edge : round.edges) talks.push_back({edge.from, edge.to});
  }
  return talks;
}

Order line_up(const ScheduleRequest& request) {
  std::vector<int> positions(static_cast<size_t>(request.world_size));
  std::iota(positions.begin(), positions.end(), 0);
  return arranged(request, near_order(request), doubling_talks(positions));
}

Schedule all_reduce(const ScheduleRequest& request) {
  const auto order = std::make_shared<const Order>(line_up(request));
  Schedule schedule(request, "recursive_doubling");
  for (Round& round : doubling_rounds(order->ranks(), 1, 1)) schedule.add_round(std::move(round));
  schedule.set_program([order](PlanBuilder& b, int) {
    Forest forest(b);
    forest.begin_phase();
    add_recursive_doubling(forest, 0, order->ranks());
  });
  return schedule;
}

}  // namespace

void add_recursive_doubling(Forest& forest, int part, const std::vector<int>& team) {
  const Doubling doubling(static_cast<int>(team.size()));
  const auto position = static_cast<int>(std::ranges::find(team, forest.rank()) - team.begin());
  const auto rank_at = [&](int other) { return team[static_cast<size_t>(other)]; };

  if (doubling.sits_out(position)) {
    forest.send(rank_at(position + 1), part);
    forest.receive_result(rank_at(position + 1), part);
    return;
  }
  if (doubling.has_surplus_partner(position)) {
    const auto incoming = forest.receive(rank_at(position - 1), part);
    forest.fold(part, {{incoming.block, forest.held(part)}}, {{incoming}}, false);
  }
  const int index = doubling.index_of(position);
  for (int distance = 1; distance < doubling.size; distance *= 2) {
    const int partner = index ^ distance;
    const int peer = rank_at(doubling.position_of(partner));
    forest.send(peer, part);
    const auto incoming = forest.receive(peer, part);
    const Block lower = partner < index ? incoming.block : forest.held(part);
    const Block upper = partner < index ? forest.held(part) : incoming.block;
    forest.fold(part, {{lower, upper}}, {{incoming}}, 2 * distance == doubling.size);
  }
  if (doubling.has_surplus_partner(position)) forest.send(rank_at(position - 1), part);
}

std::vector<Round> doubling_rounds(const std::vector<int>& team, double share,
                                   double contributions) {
  const Doubling doubling(static_cast<int>(team.size()));
  const auto rank_at = [&](int position) { return team[static_cast<size_t>(position)]; };
  std::vector<Round> rounds;
  Round surplus{.folds = true, .contributions = contributions};
  for (int position = 0; position < 2 * doubling.surplus; position += 2) {
    surplus.edges.push_back({rank_at(position), rank_at(position + 1), 1, share});
  }
  if (doubling.surplus > 0) rounds.push_back(surplus);
  for (int distance = 1; distance < doubling.size; distance *= 2) {
    Round round{.folds = true, .contributions = contributions * distance};
    for (int index = 0; index < doubling.size; ++index) {
      round.edges.push_back({rank_at(doubling.position_of(index)),
                             rank_at(doubling.position_of(index ^ distance)), 1, share});
    }
    rounds.push_back(std::move(round));
  }
  if (doubling.surplus > 0) {
    rounds.push_back(backwards({surplus}, contributions * static_cast<double>(team.size()))[0]);
  }
  return rounds;
}

Order doubling_order_of_hosts(const ScheduleRequest& request) {
  Order order = near_order(request);
  std::vector<int> leaders;  // their positions
  for (int position = 0; position < order.size(); ++position) {
    const bool is_first =
        position == 0 || !request.fabric->same_host(order.at(position - 1), order.at(position));
    if (is_first) leaders.push_back(position);
  }
  return arranged(request, std::move(order), doubling_talks(leaders));
}

std::vector<Generator> recursive_doubling_generators() {
  return {{.name = "recursive_doubling",
           .collective = Collective::kAllReduce,
           .generate = all_reduce,
           .codable = Codable::kOnAllEdges}};
}

}  // namespace q7x2
