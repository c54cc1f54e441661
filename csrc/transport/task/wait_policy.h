// WaitPolicy: whether a waiting thread polls again, offers its processor to others, or sleeps.
//
//   poll ... poll   yield   poll ... poll   yield   ...   sleep until an event
//
// A waiter spins first, because a message within a host takes less time than a sleep and a wake-up.
// Between polls it yields, since the very process that it waits for may need the processor. It
// polls only briefly between yields if the ranks outnumber the processors. It sleeps when nothing
// has happened for long enough.
//
// If a yield takes long, another process has accepted it: other processes want the processor, and
// will for a while. A waiter that waits for other hosts then polls only briefly between yields. In
// a short call it continues to do so, because a processor that falls idle is slow to wake. In a
// longer call it sleeps almost at once, and leaves the time to processes that have work.
//
// This class is pure: it holds no descriptor and reads no clock.
#pragma once

#include <chrono>

namespace q7x2 {

class WaitPolicy {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Microseconds = std::chrono::microseconds;

  /// How long a waiter spins at first, and after it saw an event.
  static constexpr Microseconds kSpin{100};
  static constexpr Microseconds kSpinAfterEvent{20};
  /// Polls between two yields if every rank of this host has a processor of its own.
  static constexpr int kLooksPerYield = 8;
  static constexpr int kProgressPerLook = 16;
  /// A yield that takes longer than kAccepted was accepted. The processor then counts as wanted for
  /// kStaysWanted.
  static constexpr Microseconds kAccepted{5};
  static constexpr std::chrono::milliseconds kStaysWanted{10};
  /// If the processor is wanted: how long a call counts as short, the spin in a longer call, and
  /// the progress per poll.
  static constexpr Microseconds kShortCall{500};
  static constexpr Microseconds kSpinWhereWanted{5};
  static constexpr int kProgressWhereWanted = 2;

  /// `by_network`: it waits only for messages of other hosts, so an event wakes it. Messages in
  /// shared memory wake no thread by themselves. `crowded`: ranks outnumber the processors of this
  /// host. `wanted`: other processes want the processor.
  WaitPolicy(TimePoint now, bool by_network, bool crowded, bool wanted)
      : by_network_(by_network),
        crowded_(crowded),
        wanted_(by_network && wanted),
        spin_until_(now + kSpin),
        short_until_(now + kShortCall) {}

  /// How many times to progress in one poll.
  int progress_per_look() const {
    return crowded_ || wanted_ ? kProgressWhereWanted : kProgressPerLook;
  }

  /// A poll saw an event.
  void saw_event(TimePoint now) {
    const TimePoint until = now + (wanted_ ? spin_where_wanted(now) : kSpinAfterEvent);
    if (until > spin_until_) spin_until_ = until;
  }

  /// After a poll that saw nothing: whether to sleep.
  bool sleeps(TimePoint now) const { return now >= spin_until_; }

  /// After a poll that does not end in sleep: whether to yield.
  bool yields() { return crowded_ || by_network_ || ++looks_ % kLooksPerYield == 0; }

  /// A yield took from `before` to `after`. Returns true if it was accepted.
  bool yielded(TimePoint before, TimePoint after) {
    if (!by_network_ || after - before <= kAccepted) return false;
    wanted_ = true;
    spin_until_ = before + spin_where_wanted(before);
    return true;
  }

  bool is_by_network() const { return by_network_; }

 private:
  Microseconds spin_where_wanted(TimePoint now) const {
    return now < short_until_ ? kSpin : kSpinWhereWanted;
  }

  const bool by_network_;
  const bool crowded_;
  bool wanted_;
  TimePoint spin_until_;
  const TimePoint short_until_;
  int looks_ = 0;
};

}  // namespace q7x2
