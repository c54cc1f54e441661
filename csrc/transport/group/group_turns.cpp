// Which collectives of a group run, and which wait for their turn.
//
// They start in the order in which they were submitted, a fixed number at most at once, each when
// it has the memory that it needs, and none that is too far ahead of the oldest one in progress. So
// all ranks number them alike, and no set of ranks can wait for each other in a circle: what the
// oldest one needs, it has. Point-to-point messages start at once.
#include <algorithm>

#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// Collectives of one group in progress at once.
constexpr int kMaxRunning = 64;
// A collective that has waited for so long asks some of those it waits for whether they made the
// same call.
constexpr std::chrono::milliseconds kFirstPatience{10};

}  // namespace

void Group::submit(Locked& locked, const std::shared_ptr<Task>& task) {
  if (task->takes_turn()) {
    // For messages; it gets this number when it begins.
    task->record(locked).sequence = sequence_ + waiting_.size();
    sequence_ += error_ || closed_ ? 1 : 0;
  }
  if (error_) {
    task->fail(locked,
               Error(error_->code(), task->name() + ": the group has failed: " + error_->what(),
                     error_->rank()));
  } else if (closed_) {
    task->fail(locked, Error(ErrorCode::kAborted, task->name() + ": the group is shut down"));
  } else if (task->takes_turn() && (running_ >= kMaxRunning || !waiting_.empty() ||
                                    is_far_ahead(locked) || !task->reserve(locked))) {
    task->record(locked).has_waited = true;
    runtime_.flights().submitted(locked, *task);
    waiting_.push_back(task);
    update_sharing(locked);
  } else {
    begin(locked, task);
  }
}

void Group::begin(Locked& locked, const std::shared_ptr<Task>& task) {
  Task::Record& record = task->record(locked);
  const auto patience = patience_of(*task);
  record.next_inquiry =
      task->submitted() + (task->takes_turn() ? std::min(kFirstPatience, patience) : patience);
  if (task->takes_turn()) {
    record.sequence = sequence_++;
    ++running_;
    record.is_started = true;  // from here on, its end ends its turn
    update_sharing(locked);
  }
  record.is_started = true;
  if (flight_ != 0 && task->is_recorded()) {
    // A task that did not have to wait for its turn spares a look at the clock.
    record.started = record.has_waited ? Clock::now() : task->submitted();
    record.waits.begin(record.started);
  }
  if (task->takes_turn() && record.sequence >= first_missed_) {
    task->stranded(locked, left_error(find_departed(record.sequence), *task));
    return;
  }
  task->start(locked);
  runtime_.flights().started(locked, *task);
}

void Group::start_waiting(Locked& locked) {
  while (!waiting_.empty() && running_ < kMaxRunning && !is_far_ahead(locked)) {
    const std::shared_ptr<Task> next = waiting_.front();
    if (!next->is_over(locked)) {
      if (!next->reserve(locked)) {
        return;
      }
      waiting_.pop_front();
      begin(locked, next);
    } else {
      waiting_.pop_front();
    }
  }
}

// Short calls may pass a long one, but not in any number: numbers in tags come again, and only the
// last calls are remembered.
bool Group::is_far_ahead(Locked& locked) {
  if (sequence_ - oldest_ < kMostAhead) return false;
  oldest_ = oldest_running(locked);
  return sequence_ - oldest_ >= kMostAhead;
}

void Group::task_done(Locked& locked, Task& task) {
  if (task.record(locked).is_started && task.takes_turn()) {
    std::erase(stalled_, &task);
    --running_;
    start_waiting(locked);
    update_sharing(locked);
  }
}

// The shared memory must be looked at while something may come through it.
void Group::update_sharing(Locked& locked) {
  const bool is_needed =
      matcher_ && (running_ > 0 || !waiting_.empty() || matcher_->expects_mail(locked));
  runtime_.groups().set_sharing(locked, *this, is_needed);
}

}  // namespace q7x2
