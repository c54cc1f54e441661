// Notifier: runs the callbacks of tasks. They are code of the host program and may wait for one
// another.
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

/// Runs callbacks one after another, in the order of `post`. A callback that waits for a later one,
/// as those of PyTorch's PowerSGD hook do, would wait for ever. So if one does not return within
/// the notifier's patience, another thread continues with the callbacks behind it.
class Notifier {
 public:
  static constexpr std::chrono::milliseconds kPatience{1};
  static constexpr size_t kMaxThreads = 64;

  explicit Notifier(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}
  /// Calls `stop`.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  /// Starts the first thread, so that `post` need not. Throws Error(kTransport).
  void start();
  /// Any thread. Returns false after `stop`; the caller then keeps `callback`, which must not
  /// throw.
  bool post(std::function<void()>&& callback);
  /// Runs everything that was posted, and waits for it. Must not be called from the notifier's own
  /// threads.
  void stop();
  /// The same until `deadline`. Returns false if some callbacks have not returned. Then the
  /// callbacks behind them are dropped, and the notifier must not be destroyed.
  bool stop(std::chrono::steady_clock::time_point deadline);
  /// Whether a callback runs or waits for its turn.
  bool is_busy();
  /// Whether the calling thread is one of the notifier's own.
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
  size_t idle_ = 0;  // how many threads have no callback
  uint64_t started_ = 0;
  uint64_t running_ = 0;  // number of the callback that has the turn; 0: none
  Clock::time_point running_since_;
  bool stopped_ = false;
};

}  // namespace q7x2
