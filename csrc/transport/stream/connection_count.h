// ConnectionCount: how many connections a path should have.
//
// It begins with few if the other host is near, and with more the farther it is, because what one
// connection carries falls with the RTT. It grows by half while that makes the path 10 % faster,
// goes back when it does not, and tries again after a while. Idle paths give connections back.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "transport/stream/stream_options.h"

namespace q7x2 {

class ConnectionCount {
 public:
  ConnectionCount(int fewest, int most) : fewest_(fewest), most_(most), wanted_(fewest) {}

  int wanted() const { return wanted_; }

  /// The RTT of the first connection.
  void start(StreamDuration rtt) {
    const auto farther = static_cast<int>(rtt / kPerConnection);
    wanted_ = std::clamp(fewest_ + farther, fewest_, most_);
  }

  /// To be called now and then while a path is busy: bytes that have been acknowledged since the
  /// last call, in `time`, with `open` connections.
  void observe(uint64_t bytes, StreamDuration time, int open, StreamDuration rtt, StreamTime now) {
    last_busy_ = now;
    if (open < wanted_) return;  // not all are there yet
    bytes_ += bytes;
    time_ += time;
    if (time_ < std::max<StreamDuration>(kPeriods * rtt, kShortest)) return;
    const double rate = static_cast<double>(bytes_) / std::chrono::duration<double>(time_).count();
    bytes_ = 0;
    time_ = {};
    decide(rate, now);
  }

  /// To be called now and then.
  void rest(StreamTime now) {
    if (last_busy_ == StreamTime{}) last_busy_ = now;
    if (now - last_busy_ < kIdle || wanted_ == fewest_) return;
    last_busy_ = now;
    wanted_ = std::max(fewest_, wanted_ / 2);
    before_ = 0;
  }

 private:
  void decide(double rate, StreamTime now) {
    if (before_ > 0) {  // it has grown
      const bool was_worth_it = rate >= kGain * rate_;
      if (!was_worth_it) {
        wanted_ = before_;
        before_ = 0;
        next_try_ = now + kAgain;
        return;
      }
      before_ = 0;
    }
    rate_ = rate;
    if (now < next_try_ || wanted_ >= most_) return;
    before_ = wanted_;
    wanted_ = std::min(most_, wanted_ + std::max(1, wanted_ / 2));
  }

  static constexpr std::chrono::microseconds kPerConnection{1500};
  static constexpr int kPeriods = 12;
  static constexpr std::chrono::milliseconds kShortest{50};
  static constexpr std::chrono::seconds kAgain{20};
  static constexpr std::chrono::seconds kIdle{60};
  static constexpr double kGain = 1.1;

  const int fewest_;
  const int most_;
  int wanted_;
  int before_ = 0;  // how many there were before it grew; 0: its gain is known
  double rate_ = 0;
  uint64_t bytes_ = 0;
  StreamDuration time_{};
  StreamTime next_try_{};
  StreamTime last_busy_{};
};

}  // namespace q7x2
