// Trees: Plans in which each part of the data is folded on its way up a tree, copied on its way
// down one, or both.
//
//        3            Most algorithms are such a forest, one tree a part, and differ in the trees
//      /   \          alone: SRA has n stars, halving-doubling n binomial trees, a chain one path.
//     1     5         Data travels up and down without waiting for other slices or parts, so all
//    / \   / \        edges of all trees are busy at the same time.
//   0   2 4   6
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/ir/schedule.h"

namespace q7x2 {

/// One rank's place in a tree. Neither parent nor children: it has no part in it.
struct Branch {
  int parent = -1;            ///< -1: this rank is the root
  std::vector<int> children;  ///< in the order in which they are sent to
};

/// The place of order[index] in a tree over the ranks in `order`, of which the first is the root.
Branch star_branch(std::span<const int> order, int index);
/// The parent of position v is v without its lowest set bit.
Branch binomial_branch(std::span<const int> order, int index);

/// The binary tree in which the ranks stand in order; each second one, from the first on, is a
/// leaf.
Branch in_order_branch(std::span<const int> order, int index);
int in_order_root(std::span<const int> order);

/// A whole tree: the parent of each rank, -1 for the root.
using Tree = std::vector<int>;

/// Trees with one part each, symbolic in the rank: its branch of the tree of a part.
using Branches = std::function<Branch(int part, int rank)>;
Branches branches_of(std::vector<Tree> trees);

/// A Plan in the making, of one rank, part by part. Of each part it knows what this rank holds:
/// at first its contribution, later a partial sum or the result, and where that is.
///
/// Work comes in phases that all ranks begin alike. In one phase a rank sends another at most one
/// message of a part, and messages are numbered by phase and part: ranks may add them in any order.
class Forest {
 public:
  using OpId = PlanBuilder::OpId;

  explicit Forest(PlanBuilder& builder);

  /// Folds part i up trees[i], the operands of each fold in the order of their ranks. The root then
  /// holds the sum: the result where `is_final`.
  void reduce_up(std::span<const Branch> trees, bool is_final = true);
  /// Passes what the root of trees[i] holds of part i to all ranks in it.
  void broadcast_down(std::span<const Branch> trees);

  /// For algorithms that are no trees.
  void begin_phase() { ++phase_; }
  void send(int peer, int part);
  /// A block from `peer`, to be folded.
  struct Incoming {
    int peer;
    Block block;
    OpId received;
  };
  Incoming receive(int peer, int part);
  /// Folds `operands`, in their order: the blocks of `incoming`, and held(part).
  void fold(int part, std::span<const Block> operands, std::span<const Incoming> incoming,
            bool is_final);
  /// Receives the result.
  void receive_result(int peer, int part);
  Block held(int part) const { return parts_[static_cast<size_t>(part)].held; }

  int num_parts() const { return static_cast<int>(parts_.size()); }
  int rank() const { return header_.rank; }

 private:
  struct Part {
    Block held;
    std::vector<OpId> ready;    ///< ops after which it is there
    std::vector<OpId> readers;  ///< ops that read the contribution in the caller's buffer
  };

  Part& part(int index) { return parts_[static_cast<size_t>(index)]; }
  /// All parts, those after this rank's own first: ranks begin with different peers.
  std::vector<int> rotated_parts() const;
  Block contribution(int part) const;
  /// Where the result belongs, if this rank is to have it.
  Block result(int part) const;
  bool wants_result(int part) const;
  int message(int part) const;

  PlanBuilder& builder_;
  const Plan& header_;
  std::vector<Part> parts_;
  int phase_ = -1;
  int next_scratch_ = 0;
};

/// What the collective asks for, by one tree a part: up, down, or up and down. The trees of
/// reduce_scatter and all_gather have part i's rank, i, at the root. Adds the rounds of all trees,
/// level by level, in a step for each rank of each tree.
Schedule forest_schedule(const ScheduleRequest& request, const std::string& algorithm,
                         const Branches& branches, std::vector<uint32_t> part_weights = {1});

/// The same without rounds: for those who can name them in fewer steps.
Schedule bare_forest_schedule(const ScheduleRequest& request, const std::string& algorithm,
                              const Branches& branches, std::vector<uint32_t> part_weights = {1});

/// What travels up the trees of all parts of the Schedule.
std::vector<Round> rounds_up(const Schedule& schedule, const Branches& branches);

/// How many parts a collective of that request has: one for each weight, or for each rank.
int num_parts(Collective collective, int world_size, size_t weights);

}  // namespace q7x2
