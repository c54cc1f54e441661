#include "transport/task/task.h"

#include <algorithm>
#include <set>

#include "transport/task/input_latch.h"
#include "transport/task/task_host.h"

namespace q7x2 {

namespace {

// A call that has waited this long, or for half of its timeout, logs a warning. No warning if the
// timeout is short, because the error follows soon.
constexpr std::chrono::milliseconds kWarnAfter{10'000};
constexpr std::chrono::milliseconds kWarnNotBefore{500};

}  // namespace

Task::Task(std::shared_ptr<Group> group, std::chrono::milliseconds timeout)
    : group_(std::move(group)), timeout_(timeout) {}

void Task::notify(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(callback_mutex_);
    if (!notified_) {
      callback_ = std::move(callback);
      return;
    }
  }
  if (!host_->notify(std::move(callback))) {
    callback();  // the notifier has stopped; no lock is held here
  }
}

void Task::set_submitted(Locked&, TimePoint now) {
  submitted_ = now;
  record_.warn_at = now + kWarnAfter;
  if (timeout_ > std::chrono::milliseconds::zero()) {
    record_.deadline = now + timeout_;
    record_.warn_at = now + std::clamp(timeout_ / 2, kWarnNotBefore, kWarnAfter);
  }
}

void Task::enqueue(Locked& locked, Job& job, size_t bytes) {
  locked.task_host().enqueue(locked, *this, job, bytes);
}

bool Task::awaits_inputs(Locked& locked) {
  if (!inputs_ || inputs_->is_open()) {
    return false;
  }
  if (!is_held_) {
    is_held_ = true;
    inputs_->hold(locked, weak_from_this());
  }
  return true;
}

void Task::finish(Locked& locked) {
  if (!is_over_) {
    is_over_ = true;
    settle(locked);
  }
}

// The error is published only when nothing uses the task's memory any more.
void Task::fail(Locked& locked, const Error& error) {
  if (is_over_) {
    return;
  }
  is_over_ = true;
  error_ = error;
  if (!record_.waits.is_ending() && record_.jobs == 0) {
    const PendingRequest* const first = record_.requests.first();
    record_.waits.woken_by(first == nullptr ? -1 : first->peer);
  }
  record_.waits.end(Clock::now());
  locked.task_host().failed(locked, *this);
  settle(locked);
}

void Task::settle(Locked& locked) {
  if (!is_over_) {
    return;
  }
  const bool is_back = record_.requests.is_empty() && record_.jobs == 0;
  if (!is_back && record_.over_since == TimePoint::max()) {
    record_.over_since = Clock::now();
  }
  if (!done() && (is_back || (record_.over_since == TimePoint::min() && record_.jobs == 0))) {
    publish(locked);
  }
  if (is_back) {
    locked.task_host().retire(locked, *this);
  }
}

void Task::set_ready(Locked& locked, size_t bytes) {
  ready_bytes_.store(bytes, std::memory_order_release);
  locked.task_host().wake_waiters();
}

void Task::publish(Locked& locked) {
  finished_ = Clock::now();
  record_.waits.end(finished_);
  done_.store(true, std::memory_order_release);
  TaskHost& host = locked.task_host();
  host_ = &host;
  host.finished(locked, *this);
  std::function<void()> callback;
  {
    const std::lock_guard<std::mutex> lock(callback_mutex_);
    notified_ = true;
    callback.swap(callback_);
  }
  if (callback && !host.notify(std::move(callback))) {
    callback_ =
        std::move(callback);  // it may own objects that must not be destroyed under the lock
  }
  published(locked);
  host.ended(locked, *this);
}

void Task::arrived(Locked& locked, uint32_t, const HostMessage&) {
  fail(locked, Error(ErrorCode::kInternal, name() + ": does not receive from shared memory"));
}

void Task::truncated(Locked& locked, uint32_t, uint64_t tag) {
  const int source = locked.task_host().source_of(*this, tag);
  fail(locked, Error(ErrorCode::kMismatch,
                     name() + ": the message of rank " + std::to_string(source) +
                         " is longer than the receive buffer",
                     source));
}

Error Task::timeout_error(Locked& locked) {
  const TaskHost::Lateness lateness = locked.task_host().lateness(locked, *this);
  return Error(ErrorCode::kTimeout,
               name() + ": Timed out after " + std::to_string(timeout_.count()) +
                   " ms, waiting for " + waiting_for() + lateness.text,
               lateness.rank);
}

void Task::timed_out(Locked& locked) {
  fail(locked, timeout_error(locked));
}

std::string Task::waiting_for() const {
  std::set<int> sources;
  std::set<int> destinations;
  for (const PendingRequest* p = record_.requests.first(); p != nullptr; p = p->next) {
    (p->is_receive ? sources : destinations).insert(p->peer);
  }
  const auto list = [](const char* what, const std::set<int>& ranks) {
    if (ranks.empty()) {
      return std::string();
    }
    std::string text = what;
    const char* separator = " ";
    for (const int rank : ranks) {
      text += separator + (rank < 0 ? std::string("any") : std::to_string(rank));
      separator = ", ";
    }
    return text;
  };
  std::string text = list("messages from rank", sources);
  const std::string sending = list("rank", destinations);
  if (!sending.empty()) {
    text += (text.empty() ? "" : " and ") + sending + " to take a message";
  }
  if (text.empty()) {
    text = is_held_ && !inputs_->is_open() ? "the device of its tensors" : "its turn";
  }
  return text;
}

}  // namespace q7x2
