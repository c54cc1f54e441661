// WaitMeter: how long one operation has waited for messages, and for which rank most.
//
// An operation waits while none of its jobs is queued or running. A message that arrives, or is
// taken by its receiver, ends a wait. The time since the last event counts for the rank at the
// other end of this message:
//
//   start      message of 1        message of 2    job out    job back    message of 2
//     |--- waited for 1 ---|--- waited for 2 ---|               |--- waited for 2 ---|
//
// What a thread does between two events without a job, for example a copy of up to 4 KiB, counts as
// waiting. So does the time in which UCX moves the bytes.
//
// Only kRanks ranks have a counter each. One more rank replaces the rank with the least time and
// inherits its time. So the sum stays right, and a rank that has more than 1 / kRanks of the time
// is never missed (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k
// elements in data streams", 2005).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

class WaitMeter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr size_t kRanks = 8;

  struct Share {
    int rank = -1;
    int64_t nanoseconds = 0;
  };

  /// The operation starts. Nothing is counted before this call.
  void begin(TimePoint now) {
    is_on_ = true;
    last_ = now;
  }
  /// A message from or to `rank` ends a wait; -1: no rank in particular. `end` follows when the
  /// clock is read anyway.
  void woken_by(int rank) {
    is_ending_ = is_on_;
    rank_ = rank;
  }
  bool is_ending() const { return is_ending_; }
  void end(TimePoint now);
  /// The time until now was no waiting.
  void restart(TimePoint now) { last_ = std::max(last_, now); }
  /// The time from `began` to `ended` was no waiting.
  void leave_out(TimePoint began, TimePoint ended) {
    end(began);
    restart(ended);
  }

  int64_t nanoseconds() const { return total_; }
  /// The rank that was waited for longest; rank -1 if nobody was.
  Share longest() const;

 private:
  bool is_on_ = false;
  bool is_ending_ = false;
  int rank_ = -1;
  TimePoint last_{};
  int64_t total_ = 0;
  size_t count_ = 0;
  std::array<Share, kRanks> shares_;
};

}  // namespace q7x2
