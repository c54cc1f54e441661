// HostTrend: which hosts have become slower or faster at one kind of work.
//
// A quota of processor time stops a process for nearly a tenth of a second at a time. So the rate
// of a host is measured over a second or more.
//
// The rates are compared with those of the other hosts. A different Plan changes the rates of all
// hosts in the same way, so bands stay valid when the Plan changes. The rate of a slow host is
// divided by its factor before it is compared. So it needs no new band, and its recovery is noticed
// at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ledger/rate_trends.h"

namespace q7x2 {

class HostTrend {
 public:
  /// The work of a host.
  struct Work {
    int64_t amount = 0;
    int64_t microseconds = 0;
  };

  /// `least`: a host's rate counts only if its work for at least this many microseconds is known.
  HostTrend(int hosts, int64_t least);

  /// Adds a rate sample. `now`: milliseconds. `work_of`: the work of a host since the last sample.
  void sample(int64_t now, const std::function<Work(int host)>& work_of);
  /// Whether a factor has changed at `now`.
  bool has_changed(int64_t now) const { return !trends_.changes().empty() || !idle(now).empty(); }
  /// Applies the changes to the factors.
  void settle(int64_t now);
  /// By host, its rate in thousandths of its first rate; without hosts that have not changed.
  const RateTrends::Ratios& factors() const { return factors_; }
  /// The hosts that were counted as recovered by the last `settle`, because nothing was known about
  /// them for ten minutes.
  const std::set<int>& forgotten() const { return forgotten_; }

 private:
  std::set<int> idle(int64_t now) const;

  const int64_t least_;
  RateTrends trends_;
  std::optional<int64_t> since_;  // start of the sums
  std::vector<Work> sums_;        // by host
  std::map<int, int64_t> seen_;   // time at which the rate of a host was last known
  RateTrends::Ratios factors_;
  std::set<int> forgotten_;
};

}  // namespace q7x2
