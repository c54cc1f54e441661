// OffloadAttempt: a call that servers attempt. It is a collective in the server group
// (servers/server_group.h).
//
// AttemptTask decorates the task of that collective. It begins when the servers have said how many
// slots they have for it. When it has ended, the ranks vote on the outcome. If the servers have no
// slots, or rank 0 does not want the attempt, it ends at once and touches no memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "servers/credit_grant.h"
#include "transport/group/group.h"
#include "transport/task/completion_queue.h"
#include "transport/task/input_latch.h"
#include "transport/task/task.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class OffloadAttempt {
 public:
  explicit OffloadAttempt(std::shared_ptr<CreditGrant> grant) : grant_(std::move(grant)) {}

  /// The grant that precedes the attempt.
  const std::shared_ptr<CreditGrant>& grant() const { return grant_; }
  /// Whether the servers have said how many slots they have. False also if that failed.
  bool has_slots() const { return grant_->done() && !grant_->error(); }
  /// Whether the attempt ends at once, without touching memory. False if not `has_slots`.
  bool is_declined() const { return has_slots() && grant_->slots() == 0; }

  /// Opens `latch` when the attempt is done, at once if it is done already.
  void when_done(Locked&, std::shared_ptr<InputLatch> latch) {
    done_ = std::move(latch);
    if (is_done_) open();
  }
  /// Once it is done: why it failed. Empty: it succeeded.
  const std::optional<Error>& error() const { return error_; }

  /// Called by the task of the attempt when it is done.
  void finish(Locked&, const std::optional<Error>& error) {
    is_done_ = true;
    error_ = error;
    if (done_) open();
  }

 private:
  void open() { CompletionQueue::post(std::exchange(done_, nullptr)->arrival()); }

  const std::shared_ptr<CreditGrant> grant_;
  std::shared_ptr<InputLatch> done_;  // null: nobody waits for it
  bool is_done_ = false;
  std::optional<Error> error_;
};

/// The task of an attempt. `CallTask`: the collective in the server group.
template <typename CallTask>
class AttemptTask final : public CallTask {
 public:
  /// `arguments`: those of CallTask.
  template <typename... Arguments>
  explicit AttemptTask(std::shared_ptr<OffloadAttempt> attempt, Arguments&&... arguments)
      : CallTask(std::forward<Arguments>(arguments)...), attempt_(std::move(attempt)) {}

  bool is_attempt() const override { return true; }
  bool can_fail_alone(bool) const override { return false; }
  int first_server() const override { return attempt_->grant()->first_server(); }

 protected:
  // The choice for an attempt is already known, so only the grant precedes it.
  std::shared_ptr<Task> prerequisite(Locked& locked) override {
    CallTask::prerequisite(locked);
    return attempt_->grant();
  }
  bool reserve(Locked& locked) override {
    if (this->group().departure().find_missing(this->sequence()) >= 0) return true;
    if (!attempt_->has_slots()) return false;
    if (attempt_->is_declined()) return true;
    if constexpr (requires { this->limit_window(size_t{1}); }) {
      this->limit_window(attempt_->grant()->slots());
    }
    return CallTask::reserve(locked);
  }
  void start(Locked& locked) override {
    if (!attempt_->is_declined()) return CallTask::start(locked);
    this->group().agreement().remember(locked, this->sequence(), this->fingerprint());
    this->finish(locked);
  }
  void published(Locked& locked) override {
    attempt_->finish(locked, this->error());
    CallTask::published(locked);
  }

 private:
  const std::shared_ptr<OffloadAttempt> attempt_;
};

}  // namespace q7x2
