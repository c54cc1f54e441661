// TimeEstimate: what calls would take, for c10d's `_time_estimator`.
//
// Between `_start_time_estimate` and `_end_time_estimate`, the calls of that thread on the group
// are not run. Each adds the time that the planner predicts for it, as if the calls were made one
// after the other. Nothing is sent, so each rank may ask by itself.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "backend/tensor_call.h"
#include "plan/choose/planner.h"

namespace q7x2 {

/// One per group. Thread-safe; other threads make their calls as always.
class TimeEstimate {
 public:
  /// Throws c10::Error if a thread has begun, and has not ended yet.
  void begin();
  /// Microseconds of the calls since `begin`. Throws c10::Error if this thread has not begun.
  double end();
  /// Whether the calls of this thread are estimated.
  bool is_on() const {
    return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  /// By the thread that has begun.
  void add(double seconds) { seconds_ += seconds; }

 private:
  std::atomic<std::thread::id> thread_{};  // none: nothing is estimated
  double seconds_ = 0;                     // belongs to that thread
};

/// Seconds that the call would take, by the best Plan for its exact size.
double predicted_seconds(const Planner& planner, const TensorCall& call);
/// The same for a message of `bytes` bytes between two ranks.
double predicted_seconds(const Fabric& fabric, int rank, int peer, size_t bytes);

}  // namespace q7x2
