// JobQueue: the jobs that wait for a thread, and the lanes: threads that only run jobs.
//
// A thread that waits for a task runs the jobs of that task's group, so no job needs a hand-over to
// another thread. The driver's thread runs the jobs of groups that no thread waits for. Lanes take
// the rest if this process has more than one processor: n ranks on a host with m processors have m
// / n - 1 lanes each, and none if the ranks fill the processors. Q7X2_LANES sets another number. A
// caller that submits a task runs its small jobs at once, and very short work is never queued
// (executor/collective/collective.cpp).
//
// A device may do the work of a job. Then the thread that runs the job only enqueues the work, and
// the job is complete when the device is (transport/task/completion_queue.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transport/task/job.h"
#include "transport/ucx/locked.h"

namespace q7x2 {

class Group;
class Parking;
class TaskTable;

/// How many lanes a process has if the `ranks` ranks of its host share `processors`. Throws
/// Error(kInvalidArgument) if Q7X2_LANES is not a number from 0 to 1024.
size_t lanes_of_process(int processors, int ranks);

class JobQueue {
 public:
  /// Bytes. A smaller job is not worth a hand-over to another thread.
  static constexpr size_t kSmall = size_t{64} << 10;

  JobQueue(ReactorLock& lock, TaskTable& tasks, Parking& parking)
      : lock_(lock), tasks_(tasks), parking_(parking) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  ~JobQueue() { stop(); }

  /// `bytes`: how many bytes the job processes. The job must live until its task is told.
  void add(Locked& locked, Task& task, Job& job, size_t bytes);
  /// A task is over: drops its jobs that have not begun.
  void forget(Locked& locked, Task& task);
  /// A job that a device continued is complete: tells its task.
  void completed(Locked& locked, Job& job);

  bool is_empty() const { return size_.load(std::memory_order_relaxed) == 0; }
  /// Whether there are jobs of a group that no thread waits for.
  bool has_orphans() const;

  // Called without the lock. Each runs one job and tells its task. Returns false if there was no
  // job.

  bool run_any();
  /// Runs a job of a task of `group`.
  bool run_of(const Group& group);
  /// Runs a job of `task` if it is small.
  bool run_small_of(const Task& task);

  /// Allows at most `lanes` lanes; of several calls, the smallest number counts. Lanes start when
  /// there is work for them.
  void allow_lanes(size_t lanes);
  /// Stops the lanes; each finishes the job that it has begun.
  void stop();

 private:
  /// Removes and returns the first job for which `wanted` is true; null if there is none.
  template <typename Wanted>
  Job* take(const Wanted& wanted);
  template <typename Wanted>
  bool run_one(const Wanted& wanted);
  void run_lane();
  void start_lane();

  ReactorLock& lock_;
  TaskTable& tasks_;
  Parking& parking_;

  std::atomic<size_t> size_{0};
  std::atomic<size_t> running_{0};
  mutable std::mutex mutex_;  // guards the members below
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  std::optional<size_t> allowed_lanes_;
  size_t idle_lanes_ = 0;
  bool is_stopped_ = false;
  std::condition_variable more_;
  std::vector<std::thread> lanes_;
};

}  // namespace q7x2
