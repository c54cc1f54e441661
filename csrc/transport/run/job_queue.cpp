#include "transport/run/job_queue.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/quiet_thread.h"
#include "transport/group/group.h"
#include "transport/run/task_table.h"
#include "transport/task/parking.h"
#include "transport/task/task.h"

namespace q7x2 {

size_t lanes_of_process(int processors, int ranks) {
  constexpr size_t kMost = 1024;
  const char* const wish = std::getenv("Q7X2_LANES");
  if (wish == nullptr) return static_cast<size_t>(std::max(processors / std::max(ranks, 1) - 1, 0));
  const auto lanes = parse_number<size_t>(wish);
  if (!lanes || *lanes > kMost) {
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("Q7X2_LANES is the number of threads that help with arithmetic, 0 to ") +
            std::to_string(kMost) + ", got '" + wish + "'");
  }
  return *lanes;
}

void JobQueue::add(Locked& locked, Task& task, Job& job, size_t bytes) {
  job.task_ = &task;
  job.bytes_ = bytes;
  job.next_ = nullptr;
  ++task.record(locked).jobs;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    (last_ == nullptr ? first_ : last_->next_) = &job;
    last_ = &job;
    const size_t waiting = size_.fetch_add(1, std::memory_order_relaxed) + 1;
    // A single job is run by the thread that adds it, or by the one that waits for it.
    if (waiting + running_ > 1) {
      if (idle_lanes_ > 0) {
        more_.notify_one();
      } else if (lanes_.size() < allowed_lanes_.value_or(0)) {
        start_lane();
      }
    }
  }
  if (task.group().is_waited_for()) {
    parking_.wake_waiters();
  } else {
    parking_.wake_driver();
  }
}

bool JobQueue::has_orphans() const {
  if (is_empty()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Job* job = first_; job != nullptr; job = job->next_) {
    if (!job->task_->group().is_waited_for()) return true;
  }
  return false;
}

template <typename Wanted>
Job* JobQueue::take(const Wanted& wanted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Job* previous = nullptr;
  Job* job = first_;
  for (; job != nullptr && !wanted(*job); job = job->next_) previous = job;
  if (job != nullptr) {
    (previous == nullptr ? first_ : previous->next_) = job->next_;
    if (last_ == job) last_ = previous;
    size_.fetch_sub(1, std::memory_order_relaxed);
  }
  return job;
}

void JobQueue::forget(Locked& locked, Task& task) {
  while (!is_empty() && take([&](const Job& job) { return job.task_ == &task; }) != nullptr) {
    --task.record(locked).jobs;
  }
}

template <typename Wanted>
bool JobQueue::run_one(const Wanted& wanted) {
  Job* const job = is_empty() ? nullptr : take(wanted);
  if (job == nullptr) return false;
  ++running_;
  const bool is_complete = job->run_timed();
  --running_;
  if (!is_complete) return true;
  Locked locked(lock_);
  tasks_.worked(locked, *job->task_, *job);
  tasks_.drain(locked);
  return true;
}

void JobQueue::completed(Locked& locked, Job& job) {
  job.ended_ = Job::TimePoint::clock::now();
  tasks_.worked(locked, *job.task_, job);
}

bool JobQueue::run_any() {
  return run_one([](const Job&) { return true; });
}

bool JobQueue::run_of(const Group& group) {
  return run_one([&](const Job& job) { return &job.task_->group() == &group; });
}

bool JobQueue::run_small_of(const Task& task) {
  return run_one([&](const Job& job) { return job.task_ == &task && job.bytes_ <= kSmall; });
}

void JobQueue::allow_lanes(size_t lanes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  allowed_lanes_ = std::min(lanes, allowed_lanes_.value_or(lanes));
}

// If no thread can be started for a lane, that is no error: other threads run its jobs.
void JobQueue::start_lane() {
  if (is_stopped_) return;
  try {
    lanes_.push_back(quiet_thread("q7x2-lane", [this] { run_lane(); }));
  } catch (const Error&) {
    allowed_lanes_ = lanes_.size();
  }
}

void JobQueue::run_lane() {
  for (;;) {
    if (run_any()) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    ++idle_lanes_;
    more_.wait(lock, [this] { return first_ != nullptr || is_stopped_; });
    --idle_lanes_;
    if (is_stopped_) return;
  }
}

void JobQueue::stop() {
  std::vector<std::thread> lanes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
    lanes = std::exchange(lanes_, {});
  }
  more_.notify_all();
  for (std::thread& lane : lanes) lane.join();
}

}  // namespace q7x2
