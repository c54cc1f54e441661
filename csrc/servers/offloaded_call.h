// OffloadedCall: a call of the ranks that servers attempt first (servers/server_group.h). It makes
// the ranks vote on the attempt, and acts on the result of the vote.
//
// The vote is a prerequisite of the call. It begins when the attempt is done on this rank. So when
// the vote is complete, the attempt is done on all ranks, and nothing touches their memory any
// more. Once the server group is dropped, there are no votes, and each call only waits for the end
// of its attempt.
//
// OffloadedTask decorates the task of the call. It ends at once if the attempt has produced the
// result. Otherwise it restores what the attempt has overwritten, and then runs the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "plan/choose/plan_cache.h"
#include "servers/offload_attempt.h"
#include "servers/verdicts.h"
#include "transport/task/job.h"
#include "transport/task/task.h"

namespace q7x2 {

class CollectiveTask;

class OffloadedCall {
 public:
  /// Restores what the attempt may have overwritten. If `run` is empty, the attempt overwrites
  /// nothing.
  struct Undo {
    std::function<void()> run;
    size_t bytes = 0;
  };

  /// `task`: the task of the attempt.
  OffloadedCall(std::shared_ptr<Verdicts> verdicts, std::shared_ptr<Task> task,
                std::shared_ptr<OffloadAttempt> attempt, Undo undo)
      : verdicts_(std::move(verdicts)),
        task_(std::move(task)),
        attempt_(std::move(attempt)),
        undo_(std::move(undo)) {}

  /// The attempt. It must be submitted right before the call.
  const std::shared_ptr<Task>& task() const { return task_; }

  // Called by the task of the call.

  /// The vote: an all-reduce of the outcome of the attempt on each rank, which precedes `call`.
  /// `agreed`: a number that must be equal on all ranks. `plans`: those of the ranks' own group.
  std::shared_ptr<Task> vote(Locked& locked, const Task& call, uint32_t agreed,
                             const std::shared_ptr<PlanCache>& plans);
  /// Whether the vote is complete.
  bool is_decided(Locked& locked);
  /// Whether the attempt has produced the result. Only once it is decided.
  bool was_served() const { return was_served_; }
  /// A job that must run before a call that was not served reads its memory; null: there is nothing
  /// to restore.
  std::unique_ptr<Job> restoring() const;
  size_t restored_bytes() const { return undo_.bytes; }

 private:
  class Vote;
  class Restoring;

  const std::shared_ptr<Verdicts> verdicts_;
  const std::shared_ptr<Task> task_;
  const std::shared_ptr<OffloadAttempt> attempt_;
  const Undo undo_;
  std::shared_ptr<Vote> vote_;  // until it is counted
  std::shared_ptr<CollectiveTask> voting_;
  bool was_served_ = false;
};

/// The task of an offloaded call. `CallTask`: the call in the ranks' own group. Each rank knows its
/// Plan without a broadcast.
template <typename CallTask>
class OffloadedTask final : public CallTask {
 public:
  /// Must be submitted right after the attempt. `plans`: those of the ranks' own group.
  /// `arguments`: those of CallTask.
  template <typename... Arguments>
  OffloadedTask(std::shared_ptr<OffloadedCall> offload, std::shared_ptr<PlanCache> plans,
                Arguments&&... arguments)
      : CallTask(std::forward<Arguments>(arguments)...),
        offload_(std::move(offload)),
        plans_(std::move(plans)) {}

  // If the call failed alone, ranks could disagree on whether the server group is still in use.
  bool can_fail_alone(bool) const override { return false; }
  void report(FlightRecord& record, NameTable& names) const override {
    offload_->was_served() ? offload_->task()->report(record, names)
                           : CallTask::report(record, names);
  }

 protected:
  // If there can be no vote, the call is submitted all the same, and fails with its group.
  std::shared_ptr<Task> prerequisite(Locked& locked) override {
    CallTask::prerequisite(locked);
    try {
      return offload_->vote(locked, *this, static_cast<uint32_t>(this->fingerprint()), plans_);
    } catch (...) {
      no_vote_ = std::current_exception();
      return nullptr;
    }
  }
  bool reserve(Locked& locked) override {
    if (no_vote_) std::rethrow_exception(no_vote_);
    if (this->group().departure().find_missing(this->sequence()) >= 0) return true;
    if (!offload_->is_decided(locked)) {
      this->record(locked).warn_at = TimePoint::max();  // the attempt reports late ranks
      return false;
    }
    return offload_->was_served() || CallTask::reserve(locked);
  }
  void start(Locked& locked) override {
    if (!offload_->was_served() && !(restoring_ = offload_->restoring())) {
      return CallTask::start(locked);
    }
    this->group().agreement().remember(locked, this->sequence(), this->fingerprint());
    if (restoring_) {
      this->enqueue(locked, *restoring_, offload_->restored_bytes());
    } else {
      this->finish(locked);
    }
  }
  void worked(Locked& locked, Job& job) override {
    if (&job != restoring_.get()) return CallTask::worked(locked, job);
    job.check();
    restoring_.reset();
    CallTask::start(locked);
  }

 private:
  const std::shared_ptr<OffloadedCall> offload_;
  const std::shared_ptr<PlanCache> plans_;
  std::exception_ptr no_vote_;      // why there can be no vote
  std::unique_ptr<Job> restoring_;  // until it has run
};

}  // namespace q7x2
