// Halving-doubling: pairs exchange half of what they still care for, at distances 1, 2, 4, ..., and
// then the results on the way back.
//
//   0 <-> 1    2 <-> 3        halving:   step k: pairs at distance 2^k split the parts they have in
//   0 <------> 2              common, each sends the half that its partner keeps: B/2, B/4, ...
//        1 <------> 3         doubling:  the same pairs in reverse order, B/p ... B/4, B/2.
//
// Seen from one part, halving is a binomial tree that ends at the part's owner: a rank passes its
// partial sum to the rank that differs in its lowest bit at which it differs from the owner. So
// this is a forest of p such trees, p the largest power of two. Near ranks stand next to each other
// and exchange most; what crosses racks is the little that is left. The n - p surplus ranks are
// leaves of all trees, right below the owner, and so cost every rank the same; where parts belong
// to ranks (reduce_scatter, all_gather), a surplus owner is put on top of another's tree.
//
//   collective       steps                      bytes sent by a rank, n = p   (B: the whole buffer)
//   all_reduce       2 log2 p                   2 B (n-1)/n
//   reduce_scatter   log2 p, n > p: 1 more      B (n-1)/n
//   all_gather       log2 p, n > p: 1 more      B (n-1)/n
//
// The bytes of the ring in logarithmic time, without the incast of SRA, but partners at all
// distances. Surplus ranks send and receive B, and all others B (n-p)/p more than for n = p.
// Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner and
// Gropp, 2005.
#include <bit>

#include "plan/generators.h"
#include "plan/order.h"
#include "plan/tree.h"

namespace q7x2 {

namespace {

/// The places of the ranks, in near order: the first p of them do the halving.
class Halving {
 public:
  explicit Halving(const PlanRequest& request)
      : order_(near_order(request)),
        place_(index_in(order_, request.rank)),
        size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(request.world_size)))) {}

  int num_owners() const { return size_; }

  /// This rank's branch of the tree whose root is at place `owner`.
  Branch branch(int owner) const {
    const int top = owner < size_ ? owner : owner - size_;
    Branch branch = place_ < size_ ? inner_branch(top) : Branch{rank_at(top), {}};
    if (top == owner) return branch;
    if (place_ == owner) return {-1, {rank_at(top)}};
    if (place_ == top) {
      branch.parent = rank_at(owner);
      std::erase(branch.children, branch.parent);
    }
    return branch;
  }

  int place_of(int rank) const { return index_in(order_, rank); }

 private:
  Branch inner_branch(int top) const {
    const int differs = place_ ^ top;
    Branch branch;
    if (differs != 0) branch.parent = rank_at(place_ ^ (differs & -differs));
    for (int bit = size_ / 2; bit > 0; bit /= 2) {
      if ((differs & ((bit * 2) - 1)) == 0) branch.children.push_back(rank_at(place_ ^ bit));
    }
    if (differs == 0) {
      for (size_t i = static_cast<size_t>(size_); i < order_.size(); ++i) {
        branch.children.push_back(order_[i]);
      }
    }
    return branch;
  }

  int rank_at(int place) const { return order_[static_cast<size_t>(place)]; }

  std::vector<int> order_;
  int place_;
  int size_;
};

Plan all_reduce(const PlanRequest& request) {
  const Halving halving(request);
  std::vector<Branch> trees;
  for (int owner = 0; owner < halving.num_owners(); ++owner) trees.push_back(halving.branch(owner));
  return forest_plan(request, "halving_doubling", trees, equal_parts(halving.num_owners()));
}

Plan by_rank(const PlanRequest& request) {
  const Halving halving(request);
  std::vector<Branch> trees;
  for (int rank = 0; rank < request.world_size; ++rank) {
    trees.push_back(halving.branch(halving.place_of(rank)));
  }
  return forest_plan(request, "halving_doubling", trees);
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
