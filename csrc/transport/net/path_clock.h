// PathClock: whether the path of one TCP connection is blocked, judged by the kernel's statistics.
//
// A path is blocked if bytes sent over it are never acknowledged although the other host answers
// elsewhere. This happens if a firewall drops the connection, or if a router silently drops its
// large packets (an MTU black hole). The path is not blocked if the receiver does not read. Then
// the receiver's kernel acknowledges what it takes, closes its window, and answers each window
// probe.
//
//   waiting     bytes are unacknowledged and the window is open, or window probes are unanswered
//   blocked     it has been waiting for the limit, and the kernel has retransmitted so often that
//               random loss does not explain it
//
// TCP retransmits at growing intervals. After an outage of the whole link it may wait for as long
// again as the outage took. So the time in which the host does not answer elsewhere does not count,
// and something must have been sent since. This class reads no clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/ip_address.h"

namespace q7x2 {

/// The kernel's statistics of a connection.
struct PathSample {
  IpEndpoint peer;  ///< the listener's port, if this end has opened the connection
  bool is_connecting = false;
  bool is_window_open = true;    ///< the receiver has room
  uint64_t acknowledged = 0;     ///< bytes
  uint32_t unacknowledged = 0;   ///< segments
  uint32_t probes = 0;           ///< window probes since the last acknowledgement
  uint32_t retransmissions = 0;  ///< by timeout, since the last progress
  uint64_t sent = 0;             ///< total number of segments with data
  uint64_t sent_again = 0;       ///< total number of retransmitted segments
  std::chrono::milliseconds since_sent{0};
  std::chrono::milliseconds since_acknowledgement{0};
};

class PathClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit PathClock(Duration limit) : limit_(limit) {}

  /// To be called about every `period`. Returns true if the path is blocked. `host_answers`:
  /// whether the other host answers elsewhere now; called only if there was no progress since the
  /// last call.
  bool look(const PathSample& sample, TimePoint now, Duration period,
            const std::function<bool()>& host_answers) {
    const bool has_progressed = sample.acknowledged != last_.acknowledged;
    // Losses before progress were random.
    if (has_progressed) loss_ = loss_of(last_);
    last_ = sample;
    const bool is_waiting =
        (sample.unacknowledged > 0 && sample.is_window_open) || sample.probes > 0;
    if (!is_waiting) {
      since_.reset();
      return false;
    }
    const TimePoint heard = now - sample.since_acknowledgement;
    if (!since_ || has_progressed) {
      since_ = sample.is_connecting ? now - period : std::max(now - period, heard);
      tries_before_ = 0;
      return false;
    }
    if (sample.probes > 0 && heard > *since_) restart(heard, sample);
    if (!host_answers()) restart(now, sample);
    return now - *since_ >= limit_ - limit_ / 20 && has_tried(sample, now);
  }

 private:
  void restart(TimePoint since, const PathSample& sample) {
    since_ = since;
    tries_before_ = tries(sample);
  }

  static uint32_t tries(const PathSample& sample) {
    return sample.probes > 0 ? sample.probes : sample.retransmissions;
  }

  /// Whether enough was sent since the wait began.
  bool has_tried(const PathSample& sample, TimePoint now) const {
    if (sample.probes > 0) return sample.probes > tries_before_ + 1;
    const bool was_sent = sample.is_connecting ? sample.retransmissions > tries_before_
                                               : now - sample.since_sent > *since_;
    return was_sent && sample.retransmissions >= needed();
  }

  /// The share of segments that a connection has lost. It is computed as if the connection had
  /// begun with many segments that were not lost.
  static double loss_of(const PathSample& sample) {
    return static_cast<double>(sample.sent_again) /
           (static_cast<double>(sample.sent) + kWithoutLoss);
  }

  /// Number of retransmissions of one segment that are not all lost by chance.
  uint32_t needed() const {
    const double transmissions = std::log(kByChance) / std::log(std::clamp(loss_, kLeast, kMost));
    return static_cast<uint32_t>(std::ceil(transmissions)) - 1;
  }

  static constexpr double kByChance = 1e-8;
  static constexpr double kWithoutLoss = 500;
  static constexpr double kLeast = 2e-3;  // so two are needed
  static constexpr double kMost = 0.5;

  Duration limit_;
  PathSample last_;
  double loss_ = 0;
  std::optional<TimePoint> since_;
  uint32_t tries_before_ = 0;  // when the wait began
};

}  // namespace q7x2
