// RateWatch: which links, and which processors, have become slower or faster.
//
// All ranks run at the rate of the slowest one, and wait for each other. So durations of calls do
// not show which rank is slow. But these do:
//
//   links        the kernel counts acknowledged bytes, and the time for which a connection was busy
//                (ledger/link_meter.h). Bytes per busy second are the rate of a route, even if its
//                sender often had nothing to send.
//   turns        the kernel counts how long a thread ran, and how long it was ready to run
//                (ledger/turn_meter.h). Other processes take turns with it; a quota stops it.
//   reductions   ranks count the bytes that their reductions process, and the time for this
//                (ledger/reduction_meter.h). A processor at a lower frequency takes longer.
//
// At agreed calls the ranks add up their counts (plan/choose/plan_cache.h), and each rank passes
// the same numbers to its own watch. A resource whose rate has left its band for good
// (ledger/rate_trends.h) has changed: its factor is the ratio of the rates now and before. A
// processor that waits for its turn also adds up more slowly. So the lower of its two factors
// counts, not their product.
//
// Rates of links are compared at each rate sample. After a change all bands are learnt again,
// because another Plan shares links in another way. For processors see ledger/host_trend.h.
//
// After a pause, traffic shaping lets some bytes pass at the full speed of the processor. So a rate
// never counts as more than the Fabric has measured.
//
// A host that is slow from the first call on would count as normal. So at the first rate samples,
// the rates are compared with those that the Fabric promises. If the best quarter of the routes
// achieves some share of its promise, and a host achieves less than a fifth of that share, the host
// has become slow since the Fabric was measured. Smaller differences are no evidence, because in
// all Plans routes share NICs.
//
// A Plan may leave a slow route or private link without traffic, so its recovery could not be
// noticed. After ten minutes it counts as recovered. If it is still as slow, it is detected again
// after the same number of rate samples, by comparison with its rate when it was slow.
//
// All numbers are integers, so all ranks compute the same factors.
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
  /// The work on a resource since the last rate sample.
  struct Work {
    int32_t amount = 0;
    int32_t microseconds = 0;  ///< summed over connections, or over ranks
  };
  /// The positions of the hosts' work in a rate sample.
  struct Layout {
    int hosts;

    size_t size() const { return index(hosts, 0) + static_cast<size_t>(hosts); }
    /// KiB sent from one host to another, and the time for which connections were busy.
    size_t sent(int from, int to) const { return index(from, to); }
    /// KiB that a host's reductions have read and written. It uses the entry of a route from a host
    /// to itself.
    size_t reduced(int host) const { return index(host, host); }
    /// Microseconds for which a host's ranks ran, and for which they were ready to run.
    size_t turns(int host) const { return index(hosts, host); }

   private:
    size_t index(int row, int column) const { return static_cast<size_t>(row * hosts + column); }
  };
  /// The resource of a change.
  using Resource = RateTrends::Resource;
  /// By resource, its rate in thousandths of its first rate; without those that have not changed.
  using Factors = RateTrends::Ratios;

  explicit RateWatch(Wiring wiring);
  RateWatch(const RateWatch&) = delete;
  RateWatch& operator=(const RateWatch&) = delete;

  /// Replaces the wiring: a private link may be given up.
  void rewire(Wiring wiring) { wiring_ = std::move(wiring); }
  const Wiring& wiring() const { return wiring_; }

  /// Adds a rate sample. `pattern`: what was running; rates of links are compared only with those
  /// of the same pattern. 0: several things were running, so rates are only compared with the
  /// promised ones. `now`: milliseconds, on a clock that all ranks agree on. `pause`: minimum time
  /// between two changes. `work`: in the order of the Layout. Returns true if `factors` have
  /// changed.
  bool sample(uint64_t pattern, int64_t now, int64_t pause, std::span<const Work> work);
  const Factors& factors() const { return factors_; }
  /// The resources that counted as recovered at the last change because nothing was known about
  /// them for ten minutes.
  const std::set<Resource>& forgotten() const { return forgotten_; }

 private:
  /// A route that was slow and counts as recovered, although its recovery was not observed.
  struct Trial {
    int64_t factor;
    int64_t rate;     // the rate when it was slow
    int samples = 0;  // in a row in which it was no faster
  };

  void sample_links(uint64_t pattern, int64_t now, std::span<const Work> work);
  /// Finds hosts that achieve a far smaller share of their promised rates than others.
  void check_promises(const std::vector<RateTrends::Rate>& rates, int weight);
  void try_again(const std::vector<RateTrends::Rate>& rates, int weight);
  std::set<Resource> idle_links(int64_t now) const;
  Factors failed_trials() const;
  Factors broken_promises() const;
  bool decide(int64_t now, int64_t pause);
  void take_links(int64_t now, const Factors& changes);
  Factors of_processors() const;

  Wiring wiring_;
  const Wiring measured_;  // the wiring at the start
  const Layout layout_;
  RateTrends links_;
  std::map<Resource, int64_t> rates_;  // last rates of routes
  std::map<Resource, int64_t> seen_;   // times of these rates
  std::map<Resource, int64_t> slow_;   // rates of slow routes when they became slow
  std::map<Resource, Trial> trials_;
  Factors broken_;           // hosts that were far below their promise at the last rate sample
  int broken_samples_ = 0;   // number of samples in a row with the same resources
  int promise_samples_ = 0;  // total
  std::optional<int64_t> sampled_;  // time of the last rate sample
  std::set<Resource> forgotten_;
  HostTrend reductions_;
  HostTrend turns_;
  Factors of_links_;
  Factors factors_;  // including those of processors
  std::optional<int64_t> changed_;
};

}  // namespace q7x2
