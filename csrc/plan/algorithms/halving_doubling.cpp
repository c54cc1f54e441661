// Halving-doubling: pairs at distances 1, 2, 4, ... exchange half of the parts that they still have
// in common, and then the results in reverse order.
//
//   0 <-> 1    2 <-> 3        halving:   step k: pairs at distance 2^k split the parts they have in
//   0 <------> 2              common; each sends the half that its partner keeps: B/2, B/4, ...
//        1 <------> 3         doubling:  the same pairs in reverse order, B/p ... B/4, B/2.
//
// For one part, halving is a binomial tree that ends at the part's owner: a rank passes its partial
// sum to the rank that differs in the lowest bit in which it differs from the owner. So this is a
// forest of p such trees, where p is the largest power of two. Near ranks are next to each other
// and exchange most; little data crosses racks. The n - p surplus ranks are leaves of all trees,
// right below the owner, so they cost every rank the same. If parts belong to ranks
// (reduce_scatter, all_gather), a surplus owner is put above the root of another rank's tree.
//
//   collective       steps                      bytes sent by a rank, n = p   (B: the whole buffer)
//   all_reduce       2 log2 p                   2 B (n-1)/n
//   reduce_scatter   log2 p, n > p: 1 more      B (n-1)/n
//   all_gather       log2 p, n > p: 1 more      B (n-1)/n
//
// It moves as few bytes as the ring in logarithmic time, without the incast of SRA, but with
// partners at all distances. Surplus ranks send and receive B, and all others B (n-p)/p more than
// for n = p.
// Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner and
// Gropp, 2005.
#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "plan/algorithms/generators.h"
#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

namespace {

/// Ranks in an order in which those that exchange most are near each other.
Order line_up(const ScheduleRequest& request) {
  const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(request.world_size)));
  std::vector<Talk> talks;
  for (int bit = 1; bit < size; bit *= 2) {
    for (int position = 0; position < size; ++position) {
      if ((position & bit) == 0) talks.push_back({position, position ^ bit, 0.5 / bit});
    }
  }
  return arranged(request, near_order(request), talks);
}

/// The positions of the ranks, in near order; the first p positions take part in the halving.
class Halving {
 public:
  explicit Halving(const ScheduleRequest& request)
      : order_(line_up(request)),
        size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(request.world_size)))) {}

  int num_owners() const { return size_; }
  /// Whether positions equal ranks, and there are no surplus ranks.
  bool is_plain() const { return size_ == order_.size() && std::ranges::is_sorted(order_.ranks()); }
  int position_of(int rank) const { return order_.position_of(rank); }

  /// A rank's branch of the tree whose root is at position `owner`.
  Branch branch(int rank, int owner) const {
    const int position = order_.position_of(rank);
    const int top = owner < size_ ? owner : owner - size_;
    Branch branch = position < size_ ? inner_branch(position, top) : Branch{order_.at(top), {}};
    if (top == owner) return branch;
    if (position == owner) return {-1, {order_.at(top)}};
    if (position == top) {
      branch.parent = order_.at(owner);
      std::erase(branch.children, branch.parent);
    }
    return branch;
  }

  /// The rounds up the trees of the first `num_trees` positions: p, or all n.
  std::vector<Round> rounds_up(int num_trees, double share) const {
    const int above = num_trees - size_;  // trees with a surplus owner above another root
    std::vector<Round> rounds;
    double contributions = 1;
    for (int bit = 1; bit < size_; bit *= 2) {
      Round round{.folds = true, .contributions = contributions};
      for (int position = 0; position < size_; ++position) {
        // The trees whose root differs from this position first in that bit.
        const int residue = (position ^ bit) & (2 * bit - 1);
        const int trees = size_ / (2 * bit) + (above - residue + 2 * bit - 1) / (2 * bit);
        round.edges.push_back(
            {order_.at(position), order_.at(position ^ bit), static_cast<uint32_t>(trees), share});
      }
      rounds.push_back(std::move(round));
      contributions *= 2;
    }
    const auto first = order_.ranks().begin();
    const Team surplus = team_of({first + size_, order_.ranks().end()});
    if (!surplus->empty()) {
      if (rounds.empty()) rounds.push_back({.folds = true});
      rounds[0].crosses = {{surplus, team_of({first, first + size_}), 1, share}};
    }
    if (above == 0) return rounds;
    rounds[0].crosses.push_back({surplus, team_of({first, first + above}), 1, share, true});
    Round last{.folds = true, .contributions = order_.size() - 1.0};
    for (int position = 0; position < above; ++position) {
      last.edges.push_back({order_.at(position), order_.at(position + size_), 1, share});
    }
    rounds.push_back(std::move(last));
    return rounds;
  }

 private:
  Branch inner_branch(int position, int top) const {
    const int differs = position ^ top;
    Branch branch;
    if (differs != 0) branch.parent = order_.at(position ^ (differs & -differs));
    for (int bit = size_ / 2; bit > 0; bit /= 2) {
      if ((differs & ((bit * 2) - 1)) == 0) branch.children.push_back(order_.at(position ^ bit));
    }
    if (differs == 0) {
      for (int i = size_; i < order_.size(); ++i) branch.children.push_back(order_.at(i));
    }
    return branch;
  }

  Order order_;
  int size_;
};

/// From this number of ranks on, parts are sent in flipped order. Then one rank stands for all, and
/// the Plans of all of them, which are seconds of work, need not be made to know how long they
/// take.
constexpr int kManyRanks = 512;

PartOrder part_order(const Halving& halving) {
  const bool flips = halving.is_plain() && halving.num_owners() >= kManyRanks;
  return flips ? PartOrder::kFlipped : PartOrder::kShifted;
}

/// Both halves of the positions do the same. With flipped parts, all positions do.
void set_turn(Schedule& schedule, const Halving& halving) {
  if (!halving.is_plain()) return;
  const bool flips = part_order(halving) == PartOrder::kFlipped;
  const int ranks = flips ? 1 : schedule.world_size() / 2;
  schedule.set_turn({.ranks = ranks, .messages_of_parts = true, .flips = flips});
}

Schedule all_reduce(const ScheduleRequest& request) {
  const auto halving = std::make_shared<const Halving>(request);
  const int owners = halving->num_owners();
  Schedule schedule = bare_forest_schedule(
      request, "halving_doubling",
      [halving](int part, int rank) { return halving->branch(rank, part); }, equal_parts(owners),
      part_order(*halving));
  set_turn(schedule, *halving);
  const std::vector<Round> up = halving->rounds_up(owners, 1.0 / owners);
  for (const Round& round : up) schedule.add_round(round);
  for (const Round& round : backwards(up, request.world_size)) schedule.add_round(round);
  return schedule;
}

Schedule by_rank(const ScheduleRequest& request) {
  const auto halving = std::make_shared<const Halving>(request);
  Schedule schedule = bare_forest_schedule(
      request, "halving_doubling",
      [halving](int part, int rank) { return halving->branch(rank, halving->position_of(part)); },
      {1}, part_order(*halving));
  set_turn(schedule, *halving);
  std::vector<Round> rounds = halving->rounds_up(request.world_size, 1);
  if (request.collective == Collective::kAllGather) rounds = backwards(std::move(rounds), 1);
  for (Round& round : rounds) schedule.add_round(std::move(round));
  return schedule;
}

constexpr int kMaxRanks = Plan::kMaxMessages / 2;

}  // namespace

std::vector<Generator> halving_doubling_generators() {
  return {
      {.name = "halving_doubling",
       .collective = Collective::kAllReduce,
       .generate = all_reduce,
       .max_world_size = kMaxRanks},
      {.name = "halving_doubling",
       .collective = Collective::kReduceScatter,
       .generate = by_rank,
       .max_world_size = kMaxRanks},
      {.name = "halving_doubling",
       .collective = Collective::kAllGather,
       .generate = by_rank,
       .max_world_size = kMaxRanks},
  };
}

}  // namespace q7x2
