// PathClock: whether the path of one TCP connection is blocked, by what the kernel says of it.
//
// A path is blocked if what is sent over it is never acknowledged although the other host answers
// elsewhere: a firewall drops the connection, or a router drops its large packets and says nothing
// (an MTU black hole). It is not blocked if the receiver does not read. The receiver's kernel then
// acknowledges all that it takes, shuts its window, and answers each question whether it is open.
//
//   waiting     bytes are unacknowledged and the window is open, or such questions are unanswered
//   blocked     so it has been for the limit, and the kernel has sent again in vain so often that
//               loss does not explain it
//
// TCP sends again ever more rarely. After an outage of the whole link it may wait for as long again
// as the outage took. So the time in which the host does not answer elsewhere does not count, and
// something must have been sent since. This class reads no clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/ip_address.h"

namespace q7x2 {

/// What the kernel says of a connection.
struct PathSample {
  IpEndpoint peer;  ///< the listener's port, if this end has opened the connection
  bool is_connecting = false;
  bool is_window_open = true;    ///< the receiver has room
  uint64_t acknowledged = 0;     ///< bytes
  uint32_t unacknowledged = 0;   ///< segments
  uint32_t probes = 0;           ///< questions for room since the last acknowledgement
  uint32_t retransmissions = 0;  ///< by timeout, since the last progress
  uint64_t sent = 0;             ///< segments with data, all in all
  uint64_t sent_again = 0;       ///< segments, all in all
  std::chrono::milliseconds since_sent{0};
  std::chrono::milliseconds since_acknowledgement{0};
};

class PathClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit PathClock(Duration limit) : limit_(limit) {}

  /// To be called about every `period`. True: the path is blocked. `host_answers`: whether the
  /// other host answers elsewhere now; it is asked only when there was no progress since the last
  /// look.
  bool look(const PathSample& sample, TimePoint now, Duration period,
            const std::function<bool()>& host_answers) {
    const bool has_progressed = sample.acknowledged != last_.acknowledged;
    // What was lost until then was lost by chance.
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

  /// The share of segments that a connection has lost, as if it had begun with many that it has
  /// not.
  static double loss_of(const PathSample& sample) {
    return static_cast<double>(sample.sent_again) /
           (static_cast<double>(sample.sent) + kWithoutLoss);
  }

  /// How many retransmissions of one segment are not all lost by chance.
  uint32_t needed() const {
    const double transmissions = std::log(kByChance) / std::log(std::clamp(loss_, kLeast, kMost));
    return static_cast<uint32_t>(std::ceil(transmissions)) - 1;
  }

  static constexpr double kByChance = 1e-8;
  static constexpr double kWithoutLoss = 500;
  static constexpr double kLeast = 2e-3;  // so it takes two
  static constexpr double kMost = 0.5;

  Duration limit_;
  PathSample last_;
  double loss_ = 0;
  std::optional<TimePoint> since_;
  uint32_t tries_before_ = 0;  // when the time began
};

}  // namespace q7x2
