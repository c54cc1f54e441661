// DeliveryRate: how many bytes per second a path has carried lately, at best, and so how many it
// makes sense to have on their way.
//
// What is on its way beyond rate x RTT only waits in the queues of the line, where it delays
// everything and is lost if they are full. TCP's windows know nothing of each other, so the path
// looks at their sum. (BBR, Cardwell et al. 2016, has the rate as the maximum over some RTTs.)
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "transport/stream/stream_options.h"

namespace q7x2 {

class DeliveryRate {
 public:
  /// A chunk was acknowledged after `time`; until then `bytes` of the path were, since it was sent.
  void add(uint64_t bytes, StreamDuration time, StreamTime now) {
    const double seconds = std::max(std::chrono::duration<double>(time).count(), 1e-5);
    if (now >= next_window_) {
      before_ = now >= next_window_ + kWindow ? 0 : current_;
      current_ = 0;
      next_window_ = now + kWindow;
    }
    current_ = std::max(current_, static_cast<double>(bytes) / seconds);
  }
  /// Bytes per second; 0: not known.
  double best() const { return std::max(before_, current_); }
  /// How many bytes may be on their way.
  uint64_t limit(StreamDuration rtt) const {
    if (best() == 0) return std::numeric_limits<uint64_t>::max();
    const double product = best() * std::chrono::duration<double>(rtt).count();
    return static_cast<uint64_t>(kGain * product) + kLeast;
  }

 private:
  static constexpr std::chrono::seconds kWindow{10};
  // So much more than it was, the rate may be within an RTT.
  static constexpr double kGain = 1.5;
  static constexpr uint64_t kLeast = 1 << 20;

  double before_ = 0;
  double current_ = 0;
  StreamTime next_window_{};
};

}  // namespace q7x2
