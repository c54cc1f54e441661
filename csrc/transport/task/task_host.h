// TaskHost: what a task asks of the process that runs it. So a task knows neither the tables that
// it is in nor its group, which are above it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace q7x2 {

class Job;
class Locked;
class Task;

class TaskHost {
 public:
  virtual ~TaskHost() = default;

  /// Any thread. Runs `callback` on a thread of the notifier. False: it has stopped, and the caller
  /// keeps the callback.
  virtual bool notify(std::function<void()>&& callback) = 0;
  /// Queues a job of `task`; see JobQueue::add.
  virtual void enqueue(Locked& locked, Task& task, Job& job, size_t bytes) = 0;
  /// More of the output is ready.
  virtual void wake_waiters() = 0;
  /// Device memory that `task` reads has arrived on the host.
  virtual void inputs_arrived(Locked& locked, Task& task) = 0;
  /// `task` has failed. Cancels its receives and the jobs that have not begun, and forgets what it
  /// waits for in shared memory.
  virtual void failed(Locked& locked, Task& task) = 0;
  /// `task` is done: counts it, and wakes the threads that wait.
  virtual void finished(Locked& locked, Task& task) = 0;
  /// `task` has told all who wait for it: the next one in its group may begin.
  virtual void ended(Locked& locked, Task& task) = 0;
  /// The last request and the last job of `task` have come back.
  virtual void retire(Locked& locked, Task& task) = 0;

  /// The rank that sent a message with this tag.
  virtual int source_of(const Task& task, uint64_t tag) const = 0;
  /// Who has not begun the call of `task`, for messages.
  struct Lateness {
    std::string text;
    int rank = -1;
  };
  virtual Lateness lateness(Locked& locked, Task& task) = 0;
};

}  // namespace q7x2
