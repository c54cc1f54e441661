// The thread in which a hook computes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/process.h"

namespace q7x2 {

/// Runs tasks one after another: first all urgent ones, in order; then the others, in order.
class Worker {
 public:
  enum class Urgency {
    kNow,    ///< precedes a collective, for which other ranks wait
    kLater,  ///< only this rank waits for it
  };

  /// The thread calls `set_up` first.
  explicit Worker(std::function<void()> set_up);
  /// Calls `stop`.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Any thread. `task` must not throw. It is dropped after `stop`, and when the process ends.
  void post(Urgency urgency, std::function<void()> task);
  /// Runs `task` after all tasks that are posted now, and waits. If the caller is the worker's own
  /// thread, runs it at once. Throws its exception; throws Error(kAborted) in a forked child, which
  /// has no such thread.
  void run(const std::function<void()>& task);
  /// Ends the thread after its current task; other tasks are dropped. Idempotent. Must not be
  /// called in the worker's own thread.
  void stop();
  /// Whether the caller is the worker's thread.
  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// Whether it cannot be stopped any more: this is a forked child, or the process is ending.
  bool is_left_alone() const { return home_.is_elsewhere() || is_ending(); }

 private:
  void loop();

  const ForkGuard home_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> now_;
  std::deque<std::function<void()>> later_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace q7x2
