// Prerequisite: the purpose of a collective that runs right before a call.
//
// Some calls depend on what all ranks know at that moment. So a small collective precedes them. It
// is a collective like any other: the transport needs nothing special for it, and ranks that
// disagree about the call detect it there.
//
//   kind           collective           a rank contributes           the call absorbs
//   announcement   broadcast            rank 0: its choices          the choices for its kind
//   tuning round   all-reduce           what it has measured         which choice is next
//   counts         all-reduce, sum      numbers of elements it sends where its parts are cut
//   first half     all-reduce           for example maxima           what its input is made from
//   vote           all-reduce, max      how an attempt went          who has the result
//
// The first two are for Plans (plan_prerequisites.h). Counts balance the parts of a call
// (counted_cut.h). A first half precedes a call whose input depends on it (derived_input.h). Votes
// are about servers (servers/offloaded_call.h). The call waits for its turn until the collective is
// complete, and then absorbs the result.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "executor/collective/plan_call.h"
#include "transport/task/job.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class Group;

class Prerequisite {
 public:
  /// If a contribution needs a job, the job is queued as one that processes this many bytes.
  static constexpr size_t kJobBytes = size_t{16} << 20;

  /// `planned`: the collective, without regions. It runs in place, in `bytes` bytes that this
  /// object owns.
  Prerequisite(PlannedCall planned, size_t bytes);
  /// `planned`: the collective, over memory that this object owns.
  explicit Prerequisite(PlannedCall planned) : planned_(std::move(planned)) {}
  virtual ~Prerequisite() = default;
  Prerequisite(const Prerequisite&) = delete;
  Prerequisite& operator=(const Prerequisite&) = delete;

  // Called by the collective.

  /// Returns the collective. Called once.
  PlannedCall take_call() { return std::move(planned_); }
  /// Whether a warning names the ranks for which the collective waits.
  virtual bool names_late() const { return true; }
  /// Called when its turn has come and its inputs have arrived. Returns false if no rank has
  /// anything to contribute, and the collective ends at once. Equal on all ranks.
  virtual bool is_needed(Locked&) const { return true; }
  /// Called if it is needed. Writes this rank's contribution to `memory()`, or returns a job that
  /// does so.
  virtual std::unique_ptr<Job> contribute(Locked&, Group&) { return nullptr; }

  // Called by the call that it precedes.

  /// Called when the collective has succeeded: takes over its result. Returns a job that must run
  /// before the call begins; null: none.
  virtual std::unique_ptr<Job> absorb(Locked& locked) = 0;

 protected:
  std::span<std::byte> memory() { return memory_; }

 private:
  std::vector<std::byte> memory_;
  PlannedCall planned_;
};

inline Prerequisite::Prerequisite(PlannedCall planned, size_t bytes)
    : memory_(bytes), planned_(std::move(planned)) {
  planned_.call.input = planned_.call.output = {{memory_.data(), memory_.size()}};
}

}  // namespace q7x2
