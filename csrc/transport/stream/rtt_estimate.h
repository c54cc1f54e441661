// RttEstimate: the time from a chunk to its acknowledgement: smoothed (RFC 6298), and the shortest
// of the last seconds, which is that of the line without queues.
#pragma once

#include <algorithm>
#include <chrono>

#include "transport/stream/stream_options.h"

namespace q7x2 {

class RttEstimate {
 public:
  /// `rtt` is the time of one chunk or envelope, or the kernel's own estimate.
  void add(StreamDuration rtt, StreamTime now) {
    if (!is_known()) {
      smoothed_ = before_ = current_ = rtt;
      deviation_ = rtt / 8;
      next_window_ = now + kWindow;
      return;
    }
    if (now >= next_window_) {
      before_ = current_;
      current_ = rtt;
      next_window_ = now + kWindow;
    }
    current_ = std::min(current_, rtt);
    const StreamDuration off = rtt > smoothed_ ? rtt - smoothed_ : smoothed_ - rtt;
    deviation_ = (3 * deviation_ + off) / 4;
    smoothed_ = (7 * smoothed_ + rtt) / 8;
  }
  bool is_known() const { return smoothed_ > StreamDuration::zero(); }
  StreamDuration smoothed() const { return smoothed_; }
  StreamDuration shortest() const { return std::min(before_, current_); }
  /// A chunk that was overtaken is late after this time. What queues delay overtakes nothing.
  StreamDuration late() const { return std::max<StreamDuration>(shortest() * 5 / 4, kFloor); }
  /// How much later a chunk must have been sent to count as one that overtakes.
  StreamDuration reordering() const { return std::max<StreamDuration>(shortest() / 4, kFloor); }
  /// If nothing arrives any more, for how long that may be chance.
  StreamDuration patience() const {
    const StreamDuration likely = smoothed_ + std::max(4 * deviation_, smoothed_ / 4);
    return std::max<StreamDuration>(std::min(likely, 3 * shortest()), 4 * kFloor);
  }

 private:
  // Processes are not always scheduled at once.
  static constexpr std::chrono::milliseconds kFloor{5};
  static constexpr std::chrono::seconds kWindow{10};

  StreamDuration smoothed_{};
  StreamDuration deviation_{};
  StreamDuration before_{};   // the shortest of the window before
  StreamDuration current_{};  // and of this one
  StreamTime next_window_{};
};

}  // namespace q7x2
