// DeliveryRate: how many bytes per second a path has carried lately, at best, and so how fast and
// how far ahead it makes sense to send.
//
// What is on its way beyond rate x RTT only waits in the queues of the line, where it delays
// everything, acknowledgements of the other direction too, and is lost if they are full. TCP's
// windows know nothing of each other, so the path looks at their sum.
//
// As in BBR (Cardwell et al. 2016; draft-cheng-iccrg-delivery-rate-estimation) the rate is the
// maximum over some time of samples, one for each chunk: what was acknowledged from when it was
// sent until it was acknowledged itself, by the time that took, or the time in which that was sent
// if that is longer. Else bytes that waited for the repair of a loss, and come at once, would look
// like a fast line.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "transport/stream/rtt_estimate.h"
#include "transport/stream/stream_options.h"

namespace q7x2 {

class DeliveryRate {
 public:
  /// How far the path was when a chunk was sent.
  struct Mark {
    uint64_t acknowledged = 0;  ///< bytes that had been acknowledged on the path
    StreamTime last_ack;        ///< when the last of these bytes was acknowledged
    StreamTime last_sent;       ///< when it had been sent
    StreamTime sent;            ///< when the chunk was sent
  };

  /// A chunk was acknowledged now, with `total` bytes of the path so far.
  void add(const Mark& mark, uint64_t total, StreamTime now) {
    const std::chrono::duration<double> time =
        std::max({now - mark.last_ack, mark.sent - mark.last_sent, StreamDuration(kShortest)});
    if (now >= next_window_) {
      before_ = now >= next_window_ + kWindow ? 0 : current_;
      current_ = 0;
      next_window_ = now + kWindow;
    }
    current_ = std::max(current_, static_cast<double>(total - mark.acknowledged) / time.count());
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
    return (has_queues ? 1.0 : 1.5) * std::max(best(), kLeastRate);
  }

 private:
  static constexpr std::chrono::microseconds kShortest{50};
  static constexpr std::chrono::seconds kWindow{20};
  static constexpr std::chrono::milliseconds kNoise{10};
  static constexpr uint64_t kLeast = 512 << 10;
  static constexpr double kLeastRate = 5e6;

  double before_ = 0;   // the best of the window before
  double current_ = 0;  // and of this one
  StreamTime next_window_{};
};

}  // namespace q7x2
