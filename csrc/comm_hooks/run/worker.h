// The thread in which a hook computes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/process.h"

namespace q7x2 {

/// Runs what is posted, one after another: everything that is urgent first, in order; then the
/// rest, in order.
class Worker {
 public:
  enum class Urgency {
    kNow,    ///< leads to a collective, for which other ranks wait
    kLater,  ///< only this rank waits for it
  };

  /// `set_up` is the first that its thread does.
  explicit Worker(std::function<void()> set_up);
  /// Calls `stop`.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Any thread. `task` must not throw. Dropped after `stop`, and where the process ends.
  void post(Urgency urgency, std::function<void()> task);
  /// Runs `task` after all that is posted now, and waits; at once where the worker's own thread
  /// calls it. Throws what it throws, and Error(kAborted) in a forked child, which has no such
  /// thread.
  void run(const std::function<void()>& task);
  /// Ends the thread after the task it is at; the rest is dropped. Idempotent. Not of its own
  /// thread.
  void stop();
  /// The caller is the worker's thread.
  bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// It cannot be stopped any more: this is a forked child, or the process ends.
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
