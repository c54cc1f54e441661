// SilenceClock: for how long a host has not answered, and what follows from it.
//
//   heard --a quarter of the limit--> doubtful: knock --the limit--> silent
//
// A process that was not run itself for a while must not blame others for the answers that it did
// not read. So a pause of its own looks counts for at most half of the limit.
//
// Silent means a twentieth before the limit. In the rest of the time whoever waits is woken, tells
// others, for some of which through a store that may not answer any more, and closes connections.
// So all have raised when the limit is over. This class reads no clock.
#pragma once

#include <algorithm>
#include <chrono>

namespace q7x2 {

class SilenceClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  SilenceClock(Duration limit, TimePoint now) : limit_(limit), heard_(now), looked_(now) {}

  /// How often to look, and how often to ask.
  static Duration period(Duration limit) {
    return std::min<Duration>(limit / 8, std::chrono::seconds(1));
  }

  /// To be called before the questions below.
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
  /// It has answered at all.
  bool was_heard() const { return was_heard_; }

  Duration silence(TimePoint now) const { return now - heard_; }
  /// It should have answered by now: ask in another way.
  bool is_doubtful(TimePoint now) const { return silence(now) >= limit_ / 4; }
  bool is_silent(TimePoint now) const { return now >= silent_at(); }
  /// When it will be silent, if nothing is heard until then.
  TimePoint silent_at() const { return heard_ + limit_ - limit_ / 20; }

 private:
  Duration limit_;
  TimePoint heard_;
  TimePoint looked_;
  bool was_heard_ = false;
};

}  // namespace q7x2
