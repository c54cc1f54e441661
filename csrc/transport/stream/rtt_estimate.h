// RttEstimate: the time from a chunk to its acknowledgement, smoothed (RFC 6298).
#pragma once

#include <algorithm>
#include <chrono>

#include "transport/stream/stream_options.h"

namespace q7x2 {

class RttEstimate {
 public:
  /// `rtt` is the time of one chunk or envelope, or the kernel's own estimate.
  void add(StreamDuration rtt) {
    if (!is_known()) {
      smoothed_ = shortest_ = rtt;
      deviation_ = rtt / 8;
      return;
    }
    shortest_ = std::min(shortest_, rtt);
    const StreamDuration off = rtt > smoothed_ ? rtt - smoothed_ : smoothed_ - rtt;
    deviation_ = (3 * deviation_ + off) / 4;
    smoothed_ = (7 * smoothed_ + rtt) / 8;
  }
  bool is_known() const { return smoothed_ > StreamDuration::zero(); }
  StreamDuration smoothed() const { return smoothed_; }
  StreamDuration shortest() const { return shortest_; }
  /// A chunk that was overtaken is late after this time.
  StreamDuration late() const { return std::max<StreamDuration>(smoothed_ * 5 / 4, kFloor); }
  /// If nothing arrives any more, for how long that may be chance.
  StreamDuration patience() const {
    return std::max<StreamDuration>(smoothed_ + std::max(4 * deviation_, smoothed_ / 4), 4 * kFloor);
  }
  /// How much later a chunk must have been sent to count as one that overtakes.
  StreamDuration reordering() const { return std::max<StreamDuration>(smoothed_ / 4, kFloor); }

 private:
  // Processes are not always scheduled at once.
  static constexpr std::chrono::milliseconds kFloor{5};

  StreamDuration smoothed_{};
  StreamDuration deviation_{};
  StreamDuration shortest_{};
};

}  // namespace q7x2
