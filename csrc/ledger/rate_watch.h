// RateWatch: whose links have become slower or faster than they were.
//
// Ranks send with the rate of the slowest link on the way, and wait for each other. So durations do
// not say which link is slow, but connections do: the kernel counts what was acknowledged, and how
// long a connection was busy (ledger/link_meter.h). Bytes per busy second are the rate of a route,
// however long its sender had nothing to send.
//
// At agreed calls the ranks add up what they have counted (plan/plan_book.h), and each feeds the
// same numbers to its own watch. Each pair of hosts has a band (ledger/rate_band.h). A pair outside
// its band is blamed on
//
//   a host     if all that it sends and all that it receives is outside
//   one way    of a host, if all of several routes out of it, or into it, are outside
//   a route    else
//
// If all routes change by one factor, the machine has, and nothing follows. What is blamed three
// times in a row has changed: its factor is the ratio of the rates now and before. Then all bands
// begin anew, because other Plans share links in another way. What is faster than before is
// believed only of what was found slow. A factor near 1 counts as recovered.
//
// All numbers are integers, so all ranks come to the same factors.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "ledger/rate_band.h"

namespace q7x2 {

class RateWatch {
 public:
  /// What was sent from one host to another since the last look.
  struct Sent {
    int32_t kib = 0;   ///< acknowledged
    int32_t busy = 0;  ///< microseconds with bytes on their way, summed over connections
  };
  /// What a change is of: the sending and the receiving host. kAny: whatever the other end.
  using Resource = std::pair<int, int>;
  static constexpr int kAny = -1;
  /// Thousandths of the rate at the beginning; those that are as they were are left out.
  using Factors = std::map<Resource, int64_t>;

  explicit RateWatch(int hosts) : hosts_(hosts) {}

  /// Another look. `pattern`: what was running; only rates of one pattern are compared. `now`:
  /// milliseconds, on a clock that all ranks agree on. `pause`: the least time between two changes.
  /// `sent`: by sending host, then by receiving host. True: `factors` have changed.
  bool look(uint64_t pattern, int64_t now, int64_t pause, std::span<const Sent> sent);
  const Factors& factors() const { return factors_; }

 private:
  /// A pair of hosts in one look.
  struct Route {
    int from, to;
    int64_t ratio;
    bool is_outside;
  };
  struct Suspicion {
    int looks = 0;
    int64_t ratio = RateBand::kOne;
  };
  using Found = std::map<Resource, int64_t>;  // ratios

  Found blame(std::vector<Route> routes) const;
  void suspect(const Found& slower, const Found& faster);
  bool decide(int64_t now, int64_t pause);

  const int hosts_;
  std::map<uint64_t, std::map<std::pair<int, int>, RateBand>> bands_;  // by pattern and pair
  std::map<std::pair<Resource, bool>, Suspicion> suspicions_;          // by resource; is it slower
  int strays_ = 0;  // looks in a row with rates outside, and nobody to blame
  Factors factors_;
  int64_t changed_ = 0;
  bool has_changed_ = false;
};

}  // namespace q7x2
