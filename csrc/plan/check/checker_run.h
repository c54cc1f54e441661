// SymbolicRun: the Plans of all ranks, run for one slice on symbols instead of numbers.
//
// A send completes only when it is received, as in a rendezvous: a Plan that does not deadlock here
// never does. One run, in any order, stands for all timings: the race check comes first, and proves
// that what an op reads does not depend on timing. One slice stands for any number of slices and
// any windows: see plan/ir/dag_window.h.
//
// This also holds for shared memory. A place in the window stages one block for each of the Plan's
// stages, so a rank's window takes at most window x stages blocks; it is proved here that each
// stage carries one value. A place is used again when the receivers have finished with what it
// staged. They have when they have completed that slice, which is the condition of the proof there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/check/checker_group.h"
#include "plan/check/checker_structure.h"
#include "plan/check/checker_values.h"
#include "plan/ir/dag_window.h"

namespace q7x2::checker {

class SymbolicRun {
 public:
  /// The Plans must have passed check_structure. All arguments must outlive the run.
  SymbolicRun(const CheckedGroup& group, const Matches& matches, Expressions& expressions);

  /// Throws Error(kInternal) if a rank waits for ever, if an op reads a block that was not written
  /// or has another length, if it folds values that must not be folded, or if a stage carries
  /// several values.
  void run();

  /// The value of an input or output part at the end, or `kUndefined`.
  int value(int rank, Block block) const {
    return values_[static_cast<size_t>(rank)][group_.location(rank, block)].node;
  }
  /// Barriers: the ranks that have begun before `rank` can complete.
  const RankSet& heard(int rank) const { return progress_[static_cast<size_t>(rank)].heard_at_end; }

  /// The value of an input part at the beginning.
  static int input_value(const CheckedGroup& group, Expressions& expressions, int rank, int part) {
    return expressions.leaf(rank, group.length(rank, Block::input(part)));
  }

 private:
  struct Value {
    int node = kUndefined;
    Length length;
  };

  enum class State : uint8_t { kWaiting, kStarted, kComplete };

  struct Progress {
    DagWindow dag;
    std::vector<State> states;   // by op
    std::vector<RankSet> heard;  // barriers, by op: ranks known to have begun when it starts
    RankSet heard_at_end;        // barriers
    std::vector<int> staged;     // by stage: the value that it carries
  };

  void start(int rank, size_t id);
  /// Both ends of a message have started.
  void deliver(int sender, size_t send, int receiver, size_t receive);
  void complete(int rank, size_t id);
  int read(int rank, size_t id, Block block) const;
  void write(int rank, size_t id, int node);
  void stage(int rank, size_t id, int node);
  int fold(int rank, size_t id);
  /// The value that a copy or a reduce computes from the elements that it read.
  int made(int rank, const Op& op, int value);

  const CheckedGroup& group_;
  const Matches& matches_;
  Expressions& expressions_;
  std::vector<std::vector<Value>> values_;  // [rank][location]
  std::vector<Progress> progress_;          // by rank
  std::vector<int> awake_;                  // ranks that may have ops to start
};

}  // namespace q7x2::checker
