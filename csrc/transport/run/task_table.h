// TaskTable: the tasks in progress. Tells them what is complete and what is late.
//
// A task stays in the table until its last request and its last job have completed, even after an
// error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "transport/task/task.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class FlightLog;

class TaskTable {
 public:
  TaskTable(Reactor& reactor, FlightLog& flights) : reactor_(reactor), flights_(flights) {}
  TaskTable(const TaskTable&) = delete;
  TaskTable& operator=(const TaskTable&) = delete;

  /// Adds a task, and passes it to its group.
  void submit(Locked& locked, const std::shared_ptr<Task>& task);
  /// Tells tasks which requests are complete, until none is left.
  void drain(Locked& locked);
  /// Tells tasks that their deadline has passed. Ends by force the requests of a task that is over
  /// for too long.
  void expire_late(Locked& locked, TimePoint now);

  /// Tells a task that its job has run.
  void worked(Locked& locked, Task& task, Job& job);
  /// Tells a task that its input has arrived.
  void inputs_arrived(Locked& locked, Task& task);

  /// Counts a task that is done as finished.
  void finished(Locked& locked, Task& task);
  /// Cancels the receives of a task that has failed.
  void cancel(Locked& locked, Task& task);
  /// Removes a task that is done.
  void retire(Locked& locked, Task& task);
  /// Removes all tasks, at the end.
  void clear(Locked& locked);

  /// Whether a task is over and not done. If so, the requests that it still has may be ended by
  /// force.
  bool is_held_up(Locked& locked) const;

  const std::vector<std::shared_ptr<Task>>& active(Locked&) const { return active_; }
  /// Any thread. Number of tasks that are not done.
  const std::atomic<size_t>& unfinished() const { return unfinished_; }

 private:
  template <typename Step>
  void guarded(Locked& locked, Task& task, const Step& step);

  Reactor& reactor_;
  FlightLog& flights_;
  std::vector<std::shared_ptr<Task>> active_;
  std::atomic<size_t> unfinished_{0};
};

}  // namespace q7x2
