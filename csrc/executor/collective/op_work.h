// OpWork: what the ops of a Plan do to memory.
//
// That is a job (executor/call/op_job.h). It is prepared and finished with the lock held, and run
// without it. That is safe because no two ops that touch the same memory are in progress at once,
// which the checker proves of every Schedule (plan/check/checker.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>

#include "executor/call/op_job.h"
#include "executor/collective/block_map.h"
#include "executor/collective/call_run.h"
#include "ledger/work_times.h"
#include "plan/ir/dag_window.h"

namespace q7x2 {

class Task;

/// What became of an op, or of a part of it: nothing follows, it is complete, or a job goes on with
/// it.
struct OpOutcome {
  bool is_complete = false;
  OpJob* job = nullptr;
};

class OpWork {
 public:
  using Step = DagWindow::Step;

  /// All must stay.
  OpWork(Task& task, CallRun& run, BlockMap& blocks, OpJob::Memory* memory)
      : task_(task), run_(run), blocks_(blocks), jobs_(memory) {}

  /// A copy or a reduction. `length`: of the op's elements, in bytes. Throws Error(kInternal) if a
  /// block is shorter.
  OpOutcome begin(Step step, size_t length);
  /// Of a send: puts its block where ranks of this host read it.
  OpJob& stage(Step step, const Region& block);
  /// Of a receive: copies what has arrived. The message moves along, with the bytes of a
  /// descriptor.
  OpJob& take(Step step, const ShmChannel::Message& message, const Region& destination);
  /// Of a receive: what it has brought is where it belongs, and may have to be inspected.
  OpOutcome received(Step step);

  /// The job has run without an error: enters what it has made. The job is used again.
  struct Finished {
    Step step;
    OpJob::Purpose purpose;
    ShmChannel::Message message;
  };
  Finished finish(OpJob& job);

  /// Of all jobs that are finished.
  const WorkTimes& times() const { return times_; }
  void add_selection(int64_t nanoseconds) { times_.select += nanoseconds; }

  /// Throws Error(kInternal) if `region` is shorter than the op that is to use it.
  void check_covers(const Region& region, size_t length) const;

 private:
  OpJob& job(Step step, OpJob::Kind kind, size_t length);
  OpJob* copy(Step step, const Op& op, size_t length);
  OpJob* reduce(Step step, const Op& op, size_t length);
  OpJob* copy_coded(Step step, const Op& op, size_t length);
  OpJob* reduce_coded(Step step, const Op& op, size_t length);
  /// Copies the rank's contribution, with its residual, to a block that is sent as it is.
  OpJob* add_residual(Step step, const Op& op, const Region& source, const BlockCoder::Place& at);
  bool has_coded(const Op& op) const;
  /// Whether results are looked at for what is not finite.
  bool inspects(const Op& op) const {
    return run_.coder() != nullptr && run_.call().coding.refuses_nonfinite &&
           op.destination.is_part();
  }
  /// Where the message that an op makes is to be put.
  std::byte* message_of(Step step, const Op& op);
  BlockCoder::Place coding_place(const Op& op, size_t slice) const;

  Task& task_;
  CallRun& run_;
  BlockMap& blocks_;
  OpJobs jobs_;
  WorkTimes times_;
};

}  // namespace q7x2
