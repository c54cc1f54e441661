// Runs the callbacks of tasks, which may be anybody's code and may wait for one another.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace q7x2 {

/// One after another, in their order, for as long as they return. A callback that waits for a later
/// one, as those of PyTorch's PowerSGD hook do, would wait for ever; so where one does not return
/// within its patience, another thread goes on with those behind it.
class Notifier {
 public:
  static constexpr std::chrono::milliseconds kPatience{1};
  static constexpr size_t kMaxThreads = 64;

  explicit Notifier(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}
  /// Calls `stop`.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  /// Starts the first thread already, so that `post` needs none. Throws Error(kTransport).
  void start();
  /// Any thread. False after `stop`: the caller keeps it. `callback` must not throw.
  bool post(std::function<void()>&& callback);
  /// Runs all that was posted, and waits for it. Not for its own threads.
  void stop();
  /// The same until `deadline`. False: callbacks have not returned; those behind them are dropped,
  /// and this must not be destroyed.
  bool stop(std::chrono::steady_clock::time_point deadline);
  /// Whether a callback runs or waits for its turn.
  bool is_busy();
  /// Whether this is one of its own threads.
  bool is_current_thread() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void add_thread();
  bool rests() const { return callbacks_.empty() && idle_ == threads_.size(); }

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> callbacks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;  // of the threads
  uint64_t started_ = 0;
  uint64_t running_ = 0;  // the callback that those behind it wait for, by number; 0: there is none
  Clock::time_point running_since_;
  bool stopped_ = false;
};

}  // namespace q7x2
