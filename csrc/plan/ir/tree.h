// Trees: Plans in which each part of the data is folded on its way up a tree, copied on its way
// down a tree, or both.
//
//        3            Most algorithms are such a forest with one tree per part, and differ only in
//      /   \          the trees: SRA has n stars, halving-doubling n binomial trees, chain a path.
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

/// The position of one rank in a tree. A rank without parent and children is not in the tree.
struct Branch {
  int parent = -1;            ///< -1: this rank is the root
  std::vector<int> children;  ///< in the order of the sends
};

/// The branch of order[index] in a tree over the ranks in `order`, whose first rank is the root.
Branch star_branch(std::span<const int> order, int index);
/// The parent of position v is v without its lowest set bit.
Branch binomial_branch(std::span<const int> order, int index);

/// The binary tree that lists the ranks in order (in-order traversal); every second rank, from the
/// first on, is a leaf.
Branch in_order_branch(std::span<const int> order, int index);
int in_order_root(std::span<const int> order);

/// A whole tree: the parent of each rank, -1 for the root.
using Tree = std::vector<int>;

/// Trees, one per part, as a function: the branch of `rank` in the tree of `part`.
using Branches = std::function<Branch(int part, int rank)>;
/// `urgency`: by tree and rank; a rank sends to its children in the order of falling urgency, and
/// of their ranks if that is equal. Empty: equal for all.
Branches branches_of(std::vector<Tree> trees, const std::vector<std::vector<double>>& urgency = {});

/// The order in which a rank sends its parts. Ranks begin with different peers in each of them.
enum class PartOrder : uint8_t {
  kShifted,  ///< r + 1, r + 2, ..., r, modulo the number of parts
  kFlipped,  ///< r ^ 1, r ^ 2, ..., r; the number of parts is a power of two
};

/// Builds the Plan of one rank, part by part. For each part it knows which block the rank holds: at
/// first its contribution, later a partial sum or the result.
///
/// Work is done in phases that begin alike on all ranks. In one phase a rank sends another at most
/// one message per part, and messages are numbered by phase and part. So ranks may add them in any
/// order.
class Forest {
 public:
  using OpId = PlanBuilder::OpId;

  explicit Forest(PlanBuilder& builder, PartOrder order = PartOrder::kShifted);

  /// Folds part i up trees[i]; the operands of each fold are in the order of their ranks.
  /// Afterwards the root holds the sum, which is the result if `is_final`.
  void reduce_up(std::span<const Branch> trees, bool is_final = true);
  /// Passes what the root of trees[i] holds of part i to all ranks of the tree.
  void broadcast_down(std::span<const Branch> trees);

  /// For algorithms that are not trees.
  void begin_phase() { ++phase_; }
  void send(int peer, int part);
  /// A block that arrives from `peer` and is then folded.
  struct Incoming {
    int peer;
    Block block;
    OpId received;
  };
  Incoming receive(int peer, int part);
  /// Folds `operands` in this order: the blocks of `incoming`, and held(part).
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
    std::vector<OpId> ready;    ///< ops after which the block is complete
    std::vector<OpId> readers;  ///< ops that read the contribution in the caller's buffer
  };

  Part& part(int index) { return parts_[static_cast<size_t>(index)]; }
  /// All parts, this rank's own last.
  std::vector<int> ordered_parts() const;
  Block contribution(int part) const;
  /// The block of the result, if this rank must have it.
  Block result(int part) const;
  bool wants_result(int part) const;
  int message(int part) const;

  PlanBuilder& builder_;
  const Plan& header_;
  const PartOrder order_;
  std::vector<Part> parts_;
  int phase_ = -1;
  int next_scratch_ = 0;
};

/// The Schedule of a collective with one tree per part: up, down, or up and down. In reduce_scatter
/// and all_gather, rank i is the root of the tree of part i. Adds the rounds of all trees, level by
/// level, which takes one step per rank and tree.
Schedule forest_schedule(const ScheduleRequest& request, const std::string& algorithm,
                         const Branches& branches, std::vector<uint32_t> part_weights = {1});

/// The same without rounds, for generators that can compute them in fewer steps.
Schedule bare_forest_schedule(const ScheduleRequest& request, const std::string& algorithm,
                              const Branches& branches, std::vector<uint32_t> part_weights = {1},
                              PartOrder order = PartOrder::kShifted);

/// The rounds up the trees of all parts of the Schedule.
std::vector<Round> rounds_up(const Schedule& schedule, const Branches& branches);

/// Number of parts of a collective: one per weight, or one per rank.
int num_parts(Collective collective, int world_size, size_t weights);

}  // namespace q7x2
