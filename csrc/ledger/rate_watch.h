// RateWatch: whose links, and whose processors, have become slower or faster than they were.
//
// Ranks go on with the rate of the slowest of them, and wait for each other. So durations of calls
// do not say who is slow. But these do:
//
//   links        the kernel counts what was acknowledged, and how long a connection was busy
//                (ledger/link_meter.h). Bytes per busy second are the rate of a route, however long
//                its sender had nothing to send.
//   turns        the kernel counts for how long a thread ran, and for how long it was ready to run
//                (ledger/turn_meter.h). Other processes take turns with it, a quota stops it.
//   reductions   ranks count the bytes that their reductions pass over, and the time that this
//                takes (ledger/reduction_meter.h). A processor at a lower frequency takes longer.
//
// At agreed calls the ranks add up what they have counted (plan/plan_book.h), and each feeds the
// same numbers to its own watch. What has left its band for good (ledger/rate_trends.h) has
// changed: its factor is the ratio of the rates now and before. A processor that waits for its turn
// adds up more slowly, too. So the lower one of its two factors counts, and not their product.
//
// Rates of links are compared at each look. After a change all of them are learnt anew, because
// other Plans share links in another way. For processors see ledger/host_trend.h.
//
// All numbers are integers, so all ranks come to the same factors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "ledger/host_trend.h"
#include "ledger/link_blame.h"
#include "ledger/rate_trends.h"

namespace q7x2 {

class RateWatch {
 public:
  /// Some work since the last look.
  struct Work {
    int32_t amount = 0;
    int32_t microseconds = 0;  ///< summed over connections, or over ranks
  };
  /// Where a look has the work of hosts.
  struct Layout {
    int hosts;

    size_t size() const { return index(hosts, 0) + static_cast<size_t>(hosts); }
    /// KiB sent from one host to another, in the time in which connections were busy.
    size_t sent(int from, int to) const { return index(from, to); }
    /// KiB that a host's reductions have read and written. Nothing is sent from a host to itself.
    size_t reduced(int host) const { return index(host, host); }
    /// Microseconds in which a host's ranks ran, of those in which they were ready to.
    size_t turns(int host) const { return index(hosts, host); }

   private:
    size_t index(int row, int column) const { return static_cast<size_t>(row * hosts + column); }
  };
  /// What a change is of: the sending and the receiving host, kAnyHost for any other end. A host
  /// and itself: its processor.
  using Resource = RateTrends::Resource;
  /// Thousandths of the rate at the beginning; those that are as they were are left out.
  using Factors = RateTrends::Ratios;

  explicit RateWatch(int hosts);

  /// Another look. `pattern`: what was running; only rates of links of one pattern are compared.
  /// `now`: milliseconds, on a clock that all ranks agree on. `pause`: the least time between two
  /// changes. `work`: as the Layout says. True: `factors` have changed.
  bool look(uint64_t pattern, int64_t now, int64_t pause, std::span<const Work> work);
  const Factors& factors() const { return factors_; }
  /// Of the last change: the hosts whose processors count as recovered because nothing was known of
  /// them for ten minutes.
  std::set<int> forgotten() const;

 private:
  void look_at_links(uint64_t pattern, std::span<const Work> work);
  bool decide(int64_t now, int64_t pause);
  Factors of_processors() const;

  const Layout layout_;
  RateTrends links_;
  HostTrend reductions_;
  HostTrend turns_;
  Factors of_links_;
  Factors factors_;  // of processors, too
  std::optional<int64_t> changed_;
};

}  // namespace q7x2
