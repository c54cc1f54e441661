// FairClock: how long calls take that share a network.
//
// While n calls run at once, each gets about one n-th of what there is. A clock that then runs at
// one n-th of the speed shows for each call the time that it would take alone, as in fair queueing
// (Demers, Keshav and Shenker, "Analysis and simulation of a fair queueing algorithm", 1989).
#pragma once

#include <chrono>
#include <cstdint>

namespace q7x2 {

/// Not thread-safe. Reads the time only while there is something to measure.
class FairClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// A call begins. Returns what `end` wants.
  int64_t begin(bool is_measured, Clock::time_point (*now)() = Clock::now) {
    if (measured_ > 0 || is_measured) advance(now());
    ++running_;
    measured_ += is_measured ? 1 : 0;
    return nanoseconds_;
  }

  /// A call ends. Returns its nanoseconds if it was measured.
  int64_t end(bool is_measured, int64_t began, Clock::time_point (*now)() = Clock::now) {
    if (measured_ > 0) advance(now());
    --running_;
    measured_ -= is_measured ? 1 : 0;
    return nanoseconds_ - began;
  }

 private:
  void advance(Clock::time_point now) {
    if (measured_ > 0) nanoseconds_ += std::chrono::nanoseconds(now - last_).count() / running_;
    last_ = now;
  }

  int running_ = 0;
  int measured_ = 0;  // number of those that run
  int64_t nanoseconds_ = 0;
  Clock::time_point last_{};
};

}  // namespace q7x2
