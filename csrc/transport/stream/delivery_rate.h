// DeliveryRate: how many bytes per second a path has carried lately, at best, and so how fast and
// how far ahead it makes sense to send.
//
// What is on its way beyond rate x RTT only waits in the queues of the line, where it delays
// everything, acknowledgements of the other direction too, and is lost if they are full. TCP's
// windows know nothing of each other, so the path looks at their sum. As in BBR (Cardwell et al.
// 2016) the rate is a maximum over some time. It is that of trains of acknowledgements, so a short
// message between two pauses shows it as well.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>

#include "transport/stream/rtt_estimate.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

class DeliveryRate {
 public:
  /// An acknowledgement: `total` bytes of the path have been acknowledged so far.
  void acknowledged(uint64_t total, const RttEstimate& rtt, StreamTime now) {
    const StreamDuration shortest = std::max<StreamDuration>(kShortestTrain, rtt.shortest() / 5);
    // Those that come together count as one: perhaps this process has slept.
    if (train_.empty() || now - train_.back().at >= kTogether) train_.push_back({now, total});
    train_.back().total = total;
    while (train_.size() > 2 && now - train_[1].at >= shortest) train_.pop_front();
    const StreamDuration time = now - train_.front().at;
    if (time < shortest) return;
    const double rate = static_cast<double>(total - train_.front().total) /
                        std::chrono::duration<double>(time).count();
    if (now >= next_window_) {
      before_ = now >= next_window_ + kWindow ? rate : current_;
      current_ = 0;
      next_window_ = now + kWindow;
    }
    current_ = std::max(current_, rate);
  }
  /// Bytes per second; 0: not known.
  double best() const { return std::max(before_, current_); }
  /// How many bytes may be on their way.
  uint64_t limit(const RttEstimate& rtt) const {
    if (best() == 0) return std::numeric_limits<uint64_t>::max();
    const double product = best() * std::chrono::duration<double>(rtt.shortest()).count();
    return static_cast<uint64_t>(2 * product) + kLeast;
  }
  /// Bytes per second that should be sent at most. What the line carries can be seen only if more
  /// is tried, as long as that makes no queue.
  double pace(const RttEstimate& rtt) const {
    if (best() == 0) return std::numeric_limits<double>::max();
    const bool has_queues = rtt.smoothed() > rtt.shortest() * 5 / 4 + kNoise;
    return (has_queues ? 1.0 : 1.25) * std::max(best(), kLeastRate);
  }

 private:
  struct Sample {
    StreamTime at;
    uint64_t total;
  };
  static constexpr std::chrono::milliseconds kTogether{2};
  static constexpr std::chrono::milliseconds kShortestTrain{20};
  static constexpr std::chrono::seconds kWindow{20};
  static constexpr std::chrono::milliseconds kNoise{10};
  static constexpr uint64_t kLeast = 512 << 10;
  static constexpr double kLeastRate = 5e6;

  std::deque<Sample> train_;
  double before_ = 0;   // the best of the window before
  double current_ = 0;  // and of this one
  StreamTime next_window_{};
};

}  // namespace q7x2
