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
// At agreed calls the ranks add up what they have counted (plan/choose/plan_cache.h), and each
// feeds the same numbers to its own watch. What has left its band for good (ledger/rate_trends.h)
// has changed: its factor is the ratio of the rates now and before. A processor that waits for its
// turn adds up more slowly, too. So the lower one of its two factors counts, and not their product.
//
// Rates of links are compared at each rate sample. After a change all of them are learnt anew,
// because other Plans share links in another way. For processors see ledger/host_trend.h.
//
// Shaped links let some bytes pass at once after a pause, at a rate that is the processor's. So no
// rate counts as more than the Fabric has measured.
//
// What is slow from the first call on would count as normal. So at the first rate samples, the
// rates are compared with those that the Fabric promises: a host that keeps less than a fifth of
// what the best quarter of the routes keeps has become slow since the Fabric was measured. Routes
// share NICs in all Plans, so less than that says nothing.
//
// A Plan may leave a slow route or private link without traffic, so nobody would notice that it has
// recovered. After ten minutes it counts as recovered. If it is as slow as it was, it is found
// again after as few rate samples, by the rate that it had when it was slow.
//
// All numbers are integers, so all ranks come to the same factors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "ledger/host_trend.h"
#include "ledger/link_blame.h"
#include "ledger/rate_trends.h"

namespace q7x2 {

class RateWatch {
 public:
  /// Some work since the last rate sample.
  struct Work {
    int32_t amount = 0;
    int32_t microseconds = 0;  ///< summed over connections, or over ranks
  };
  /// Where a rate sample has the work of hosts.
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
  /// What a change is of.
  using Resource = RateTrends::Resource;
  /// Thousandths of the rate at the beginning; those that are as they were are left out.
  using Factors = RateTrends::Ratios;

  explicit RateWatch(Wiring wiring);
  RateWatch(const RateWatch&) = delete;
  RateWatch& operator=(const RateWatch&) = delete;

  /// What routes share from now on: a private link may be given up.
  void rewire(Wiring wiring) { wiring_ = std::move(wiring); }
  const Wiring& wiring() const { return wiring_; }

  /// Another rate sample. `pattern`: what was running; only rates of links of one pattern are
  /// compared. 0: several things, so rates are compared with what is promised only. `now`:
  /// milliseconds, on a clock that all ranks agree on. `pause`: the least time between two changes.
  /// `work`: as the Layout says. True: `factors` have changed.
  bool sample(uint64_t pattern, int64_t now, int64_t pause, std::span<const Work> work);
  const Factors& factors() const { return factors_; }
  /// Of the last change: what counts as recovered because nothing was known of it for ten minutes.
  const std::set<Resource>& forgotten() const { return forgotten_; }

 private:
  /// A route that was slow, and counts as recovered although nobody has seen that.
  struct Trial {
    int64_t factor;
    int64_t rate;     // when it was slow
    int samples = 0;  // in a row in which it was no faster
  };

  void sample_links(uint64_t pattern, int64_t now, std::span<const Work> work);
  /// Hosts that are far below what others keep of their promises.
  void check_promises(const std::vector<RateTrends::Rate>& rates, int weight);
  void try_again(const std::vector<RateTrends::Rate>& rates, int weight);
  std::set<Resource> idle_links(int64_t now) const;
  Factors failed_trials() const;
  Factors broken_promises() const;
  bool decide(int64_t now, int64_t pause);
  void take_links(int64_t now, const Factors& changes);
  Factors of_processors() const;

  Wiring wiring_;
  const Wiring measured_;  // as it was at first
  const Layout layout_;
  RateTrends links_;
  std::map<Resource, int64_t> rates_;  // of routes, when they were last seen
  std::map<Resource, int64_t> seen_;   // when that was
  std::map<Resource, int64_t> slow_;   // of slow routes: the rate that they had
  std::map<Resource, Trial> trials_;
  Factors broken_;                  // what was far below its promise at the last rate sample
  int broken_samples_ = 0;          // in a row, for the same resources
  int promise_samples_ = 0;         // so far
  std::optional<int64_t> sampled_;  // when the last rate sample was
  std::set<Resource> forgotten_;
  HostTrend reductions_;
  HostTrend turns_;
  Factors of_links_;
  Factors factors_;  // of processors, too
  std::optional<int64_t> changed_;
};

}  // namespace q7x2
