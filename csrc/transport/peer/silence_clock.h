// SilenceClock: for how long a host has not answered, and what that means.
//
//   heard --a quarter of the limit--> doubtful: knock --the limit--> silent
//
// If this process did not run for a while, it must not blame others for answers that it did not
// read. So a pause between its own calls of `look` counts for at most half of the limit.
//
// A host counts as silent at 95 % of the limit. The remaining time is used to wake the threads that
// wait, to tell other processes (some through a store that may not answer any more), and to close
// connections. So all ranks have raised their error when the limit is over. This class reads no
// clock.
#pragma once

#include <algorithm>
#include <chrono>

namespace q7x2 {

class SilenceClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  SilenceClock(Duration limit, TimePoint now) : limit_(limit), heard_(now), looked_(now) {}

  /// How often to call `look` and to ask the host.
  static Duration period(Duration limit) {
    return std::min<Duration>(limit / 8, std::chrono::seconds(1));
  }

  /// To be called before the queries below.
  void look(TimePoint now) {
    if (now - looked_ > limit_ / 2) {
      heard_ = std::max(heard_, now - limit_ / 2);
    }
    looked_ = now;
  }
  /// The host answered at that time.
  void hear(TimePoint at) {
    heard_ = std::max(heard_, at);
    was_heard_ = true;
  }
  /// Whether it has ever answered.
  bool was_heard() const { return was_heard_; }

  Duration silence(TimePoint now) const { return now - heard_; }
  /// Whether it should have answered by now, so that it must be asked in another way.
  bool is_doubtful(TimePoint now) const { return silence(now) >= limit_ / 4; }
  bool is_silent(TimePoint now) const { return now >= silent_at(); }
  /// When it becomes silent if it does not answer before.
  TimePoint silent_at() const { return heard_ + limit_ - limit_ / 20; }

 private:
  Duration limit_;
  TimePoint heard_;
  TimePoint looked_;
  bool was_heard_ = false;
};

}  // namespace q7x2
