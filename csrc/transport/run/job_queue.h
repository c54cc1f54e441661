// JobQueue: the jobs that wait for a thread, and the threads that do nothing else: lanes.
//
// Who runs a job? A thread that waits for a task runs the jobs of that task's group, so no job
// needs a hand-over to another thread. The driver's thread runs those of groups that nobody waits
// for. The lanes take what is left where this process has more processors than one: with n ranks on
// a host of m processors there are m / n - 1 lanes, none where the ranks fill the processors.
// Q7X2_LANES says another number of lanes. A caller that submits a task runs its small jobs at
// once, and what is short does not come here at all (executor/collective/collective_ops.cpp).
//
// A job may have a device do its work. Then whoever runs it enqueues that and goes on, and the job
// is complete when the device is (transport/task/completion_queue.h).
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

/// How many lanes a process has that shares `processors` with the `ranks` of its host. Throws
/// Error(kInvalidArgument) where Q7X2_LANES is no number from 0 to 1024.
size_t lanes_of_process(int processors, int ranks);

class JobQueue {
 public:
  /// A job of so few bytes is not worth a hand-over.
  static constexpr size_t kSmall = size_t{64} << 10;

  JobQueue(ReactorLock& lock, TaskTable& tasks, Parking& parking)
      : lock_(lock), tasks_(tasks), parking_(parking) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  ~JobQueue() { stop(); }

  /// `bytes`: what the job passes over. It must stay until its task is told.
  void add(Locked& locked, Task& task, Job& job, size_t bytes);
  /// A task is over: what has not begun is dropped.
  void forget(Locked& locked, Task& task);
  /// A job that a device has gone on with is complete: tells its task.
  void completed(Locked& locked, Job& job);

  bool is_empty() const { return size_.load(std::memory_order_relaxed) == 0; }
  /// Whether a group that nobody waits for has jobs here.
  bool has_orphans() const;

  // Without the lock. Each runs one job, and tells its task. False: there is none.

  bool run_any();
  /// Of a task of `group`.
  bool run_of(const Group& group);
  /// Of `task`, and small.
  bool run_small_of(const Task& task);

  /// There are at most so many lanes; the least number that was ever allowed counts. They start
  /// when there is work for them.
  void allow_lanes(size_t lanes);
  /// Lanes finish the jobs that they have begun.
  void stop();

 private:
  /// Takes out the first job that is wanted. Null: there is none.
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
  mutable std::mutex mutex_;  // guards what follows
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  std::optional<size_t> allowed_lanes_;
  size_t idle_lanes_ = 0;
  bool is_stopped_ = false;
  std::condition_variable more_;
  std::vector<std::thread> lanes_;
};

}  // namespace q7x2
