// Pacer: spreads what is sent over the time that it takes at a rate.
//
// What two processes send to each other in one burst fills the queues of both directions, and the
// acknowledgements wait behind it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "transport/stream/stream_options.h"

namespace q7x2 {

class Pacer {
 public:
  /// Time passes, at this rate in bytes per second.
  void advance(double rate, StreamTime now) {
    const double seconds = std::chrono::duration<double>(now - last_).count();
    const double burst = rate * std::chrono::duration<double>(kMoment).count();
    const double most = std::clamp(burst, kShortestBurst, kLongestBurst);
    credit_ = std::min(most, credit_ + rate * std::max(seconds, 0.0));
    last_ = now;
  }
  bool may_send() const { return credit_ > 0; }
  void spend(size_t bytes) { credit_ -= static_cast<double>(bytes); }

 private:
  // What may be sent at once after a pause: a message of medium length, and not what would fill the
  // queues of a slow line.
  static constexpr std::chrono::milliseconds kMoment{150};
  static constexpr double kShortestBurst = 256 << 10;
  static constexpr double kLongestBurst = 1 << 20;

  double credit_ = kShortestBurst;
  StreamTime last_{};
};

}  // namespace q7x2
