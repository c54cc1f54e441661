// The Plans of a group for the checker: what the collective promises about its buffers, and the
// error messages, which name a rank and an op.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "plan/check/checker_values.h"
#include "plan/ir/plan.h"
#include "plan/ir/rank_set.h"
#include "plan/ir/schedule.h"

namespace q7x2::checker {

class CheckedGroup {
 public:
  /// Holds no Plan yet. `header`: what all Plans have in common; `header` and `contract` must
  /// outlive it. Throws Error(kInternal) if the contract contradicts itself.
  CheckedGroup(const Plan& header, const Contract& contract);
  /// `plans`: those of all ranks, at least one; they must outlive the group.
  CheckedGroup(std::span<const Plan> plans, const Contract& contract);

  /// Holds the Plan, which must outlive the group, as that of `rank`.
  void hold(int rank, const Plan& plan) { plans_[static_cast<size_t>(rank)] = &plan; }
  void release(int rank) { plans_[static_cast<size_t>(rank)] = nullptr; }

  /// The Plan of a rank that it holds.
  const Plan& plan(int rank) const { return *plans_[static_cast<size_t>(rank)]; }
  /// Number of ranks and helpers; see Plan::helpers.
  int size() const { return static_cast<int>(plans_.size()); }
  int world_size() const { return header_.world_size; }
  bool is_helper(int rank) const { return rank >= world_size(); }
  const Plan& header() const { return header_; }
  Collective collective() const { return header_.collective; }
  int root() const { return header_.root; }

  const Contract& contract() const { return contract_; }
  const RankSet& contributors() const { return contributors_; }
  bool contributes(int rank) const { return contributors_.contains(rank); }
  bool receives(int rank) const { return receivers_.contains(rank); }

  /// Whether input part i is output part i.
  bool is_in_place() const { return is_flat(collective()) || collective() == Collective::kBarrier; }
  int num_inputs(int rank) const;
  int num_outputs(int rank) const;
  /// The identifier of the length of an input or output part.
  Length length(int rank, Block part) const;

  /// The index of the memory behind a block, less than `num_locations`. Input parts come first.
  size_t location(int rank, Block block) const;
  size_t num_locations(int rank) const {
    return location(rank, Block::coded(plan(rank).num_coded));
  }

  /// These throw Error(kInternal).
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail(int rank, const std::string& what) const;
  [[noreturn]] void fail(int rank, size_t op, const std::string& what) const;

 private:
  const Plan& header_;
  const Contract& contract_;
  RankSet contributors_, receivers_;
  std::vector<const Plan*> plans_;  // by rank
};

}  // namespace q7x2::checker
