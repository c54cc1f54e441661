// HostTrend: which hosts have become slower or faster at one kind of work than they were.
//
// With a quota of processor time a process is stopped for nearly a tenth of a second at a time. So
// the rate of a host is taken over a second and more.
//
// The rates are compared with those of the other hosts. Other Plans change the rates of all hosts
// alike, so bands outlive the Plans. The rate of a slow host is divided by its factor before it is
// compared. So it needs no new band, and its recovery is seen at once.
#pragma once

#include <cstddef>
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
  /// Some work of a host.
  struct Work {
    int64_t amount = 0;
    int64_t microseconds = 0;
  };

  /// `least`: the work of so many microseconds must be known of a host before its rate counts.
  HostTrend(int hosts, int64_t least);

  /// Another rate sample. `now`: milliseconds. `work_of`: what a host has done since the last one.
  void sample(int64_t now, const std::function<Work(int host)>& work_of);
  /// Whether a factor has changed by now.
  bool has_changed(int64_t now) const { return !trends_.changes().empty() || !idle(now).empty(); }
  /// Takes the changes over.
  void settle(int64_t now);
  /// Thousandths of the rate at the beginning, by host; those that are as they were are left out.
  const RateTrends::Ratios& factors() const { return factors_; }
  /// The hosts that count as recovered since the last time, because nothing was known of them for
  /// ten minutes.
  const std::set<int>& forgotten() const { return forgotten_; }

 private:
  std::set<int> idle(int64_t now) const;

  const int64_t least_;
  RateTrends trends_;
  std::optional<int64_t> since_;  // when the sums begin
  std::vector<Work> sums_;        // by host
  std::map<int, int64_t> seen_;   // when the rate of a host was last known
  RateTrends::Ratios factors_;
  std::set<int> forgotten_;
};

}  // namespace q7x2
