// Prerequisite: what a collective that runs right before a call is for.
//
// Some calls depend on what all ranks say at that moment. So a small collective precedes them. It
// is a collective like any other: it needs no way of its own through the transport, and ranks that
// disagree about the call find out in it.
//
//   kind           collective           a rank contributes           the call absorbs
//   announcement   broadcast            rank 0: its choices          the choices for its kind
//   tuning round   all-reduce           what it has measured         which choice is next
//   counts         all-reduce, sum      numbers of elements it sends where its parts are cut
//   first half     all-reduce           for example maxima           what its input is made from
//   vote           all-reduce, max      how an attempt went          who has the result
//
// The first two are about Plans (plan_prerequisites.h), counts balance the parts of a call
// (counted_cut.h), a first half comes before calls whose input depends on it (derived_input.h), and
// votes are about servers (servers/offloaded_call.h). The call waits for its turn until the
// collective is complete, and then absorbs it.
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
  /// A contribution that needs a job takes as long as one that passes over this many bytes.
  static constexpr size_t kJobBytes = size_t{16} << 20;

  /// `planned`: the collective, without regions. It is in place, in `bytes` bytes that this object
  /// keeps.
  Prerequisite(PlannedCall planned, size_t bytes);
  /// `planned`: the collective, over memory that this object keeps.
  explicit Prerequisite(PlannedCall planned) : planned_(std::move(planned)) {}
  virtual ~Prerequisite() = default;
  Prerequisite(const Prerequisite&) = delete;
  Prerequisite& operator=(const Prerequisite&) = delete;

  // For the collective.

  /// Once.
  PlannedCall take_call() { return std::move(planned_); }
  /// Whether a warning names the ranks for which it waits.
  virtual bool names_late() const { return true; }
  /// Asked when its turn has come and its inputs are there. False: nobody has anything to say, and
  /// it ends at once. The same on all ranks.
  virtual bool is_needed(Locked&) const { return true; }
  /// Then: puts into the memory what this rank says, or returns a job that does.
  virtual std::unique_ptr<Job> contribute(Locked&, Group&) { return nullptr; }

  // For the call that it precedes.

  /// Takes over what all ranks have said, when the collective has succeeded. Returns a job that the
  /// call needs before it begins; null: it needs none.
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
