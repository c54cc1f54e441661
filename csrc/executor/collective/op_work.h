// OpWork: the work of a Plan's ops on memory.
//
// It is done by jobs (executor/call/op_job.h). A job is prepared and finished with the lock held,
// and runs without it. That is safe because no two ops that touch the same memory are in progress
// at once, which the checker proves for every Schedule (plan/check/checker.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/call/op_job.h"
#include "executor/collective/block_map.h"
#include "executor/collective/call_run.h"
#include "ledger/work_times.h"
#include "plan/ir/dag_window.h"

namespace q7x2 {

class Task;

/// The outcome of an op, or of a part of it.
struct OpOutcome {
  enum class State : uint8_t { kWaits, kComplete, kContinues };

  static OpOutcome waits() { return {}; }  ///< a hook of the task is called later
  static OpOutcome complete() { return {State::kComplete}; }
  static OpOutcome continued_by(OpJob& job) { return {State::kContinues, &job}; }

  State state = State::kWaits;
  OpJob* job = nullptr;  ///< only if it continues
};

class OpWork {
 public:
  using Step = DagWindow::Step;

  /// All must outlive it.
  OpWork(Task& task, CallRun& run, BlockMap& blocks, OpJob::Memory* memory)
      : task_(task), run_(run), blocks_(blocks), jobs_(memory) {}

  /// Begins a copy or a reduction. `length`: bytes of the op's elements. Throws Error(kInternal) if
  /// a block is shorter.
  OpOutcome begin(Step step, size_t length);
  /// Part of a send: copies its block to where ranks of this host read it.
  OpJob& stage(Step step, const Region& block);
  /// Part of a receive: copies what has arrived. The job keeps a copy of the message, because a
  /// short one contains its data.
  OpJob& take(Step step, const ShmChannel::Message& message, const Region& destination);
  /// Part of a receive: the data is at its destination, and may have to be inspected.
  OpOutcome received(Step step);

  /// The job has run without an error: records the result, and releases the job for reuse.
  struct Finished {
    Step step;
    OpJob::Purpose purpose;
    ShmChannel::Message message;
  };
  Finished finish(OpJob& job);

  /// The times of all jobs that are finished.
  const WorkTimes& times() const { return times_; }
  void add_selection(int64_t nanoseconds) { times_.select += nanoseconds; }

  /// Throws Error(kInternal) if `region` is shorter than `length`.
  void check_covers(const Region& region, size_t length) const;

 private:
  OpJob& job(Step step, OpJob::Kind kind, size_t length);
  OpJob* copy(Step step, const Op& op, size_t length);
  OpJob* reduce(Step step, const Op& op, size_t length);
  OpJob* copy_coded(Step step, const Op& op, size_t length);
  OpJob* reduce_coded(Step step, const Op& op, size_t length);
  /// Copies the rank's contribution, with its residual added, to a block that is sent uncoded.
  OpJob* add_residual(Step step, const Op& op, const Region& source, const BlockCoder::Place& at);
  bool has_coded(const Op& op) const;
  /// Whether the op's result is inspected for infinities and NaNs.
  bool inspects(const Op& op) const {
    return run_.coder() != nullptr && run_.call().coding.refuses_nonfinite &&
           op.destination.is_part();
  }
  /// Where an op writes the message that it makes.
  std::byte* message_of(Step step, const Op& op);
  BlockCoder::Place coding_place(const Op& op, size_t slice) const;

  Task& task_;
  CallRun& run_;
  BlockMap& blocks_;
  OpJobs jobs_;
  WorkTimes times_;
};

}  // namespace q7x2
