// OffloadedCall: a call of the ranks that servers attempt first (servers/server_group.h): the vote
// on the attempt, and what follows from it.
//
// The vote is a prerequisite of the call. It begins when the attempt is done on this rank. So when
// the vote is complete, the attempt is done on all ranks, and nothing touches their memory any
// more. Once the server group is dropped, votes say nothing, and each call only waits for the end
// of its attempt.
//
// OffloadedTask decorates the task of the call: it ends at once if the attempt has brought the
// result. Else it puts back what the attempt has overwritten, and then runs.
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
  /// How what the attempt may have overwritten is put back; without `run`: it overwrites nothing.
  struct Undo {
    std::function<void()> run;
    size_t bytes = 0;
  };

  /// `task`: of the attempt.
  OffloadedCall(std::shared_ptr<Verdicts> verdicts, std::shared_ptr<Task> task,
                std::shared_ptr<OffloadAttempt> attempt, Undo undo)
      : verdicts_(std::move(verdicts)),
        task_(std::move(task)),
        attempt_(std::move(attempt)),
        undo_(std::move(undo)) {}

  /// The attempt, to be submitted right before the call.
  const std::shared_ptr<Task>& task() const { return task_; }

  // For the call.

  /// The all-reduce of what the ranks say of the attempt, which precedes `call`. `agreed`: what the
  /// ranks must agree on. `plans`: of the ranks' own group.
  std::shared_ptr<Task> vote(Locked& locked, const Task& call, uint32_t agreed,
                             const std::shared_ptr<PlanCache>& plans);
  /// False until the vote is complete.
  bool is_decided(Locked& locked);
  /// Whether the attempt has brought the result. Only once it is decided.
  bool was_served() const { return was_served_; }
  /// To be run before a call that was not served reads its memory; null: nothing is.
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

/// `CallTask`: the call in the ranks' own group, for which each rank knows its Plan.
template <typename CallTask>
class OffloadedTask final : public CallTask {
 public:
  /// To be submitted right after the attempt. `plans`: of the ranks' own group. The others are
  /// those of CallTask.
  template <typename... Arguments>
  OffloadedTask(std::shared_ptr<OffloadedCall> offload, std::shared_ptr<PlanCache> plans,
                Arguments&&... arguments)
      : CallTask(std::forward<Arguments>(arguments)...),
        offload_(std::move(offload)),
        plans_(std::move(plans)) {}

  // All ranks must know alike whether servers still count.
  bool can_fail_alone(bool) const override { return false; }
  void report(FlightRecord& record, NameTable& names) const override {
    offload_->was_served() ? offload_->task()->report(record, names)
                           : CallTask::report(record, names);
  }

 protected:
  // If there can be no vote, the call is submitted all the same, so that its group fails with it.
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
      this->record(locked).warn_at = TimePoint::max();  // the attempt says who is late
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
  std::exception_ptr no_vote_;      // why there is none
  std::unique_ptr<Job> restoring_;  // until it has run
};

}  // namespace q7x2
