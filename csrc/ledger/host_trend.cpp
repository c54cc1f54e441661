#include "ledger/host_trend.h"

#include <utility>

namespace q7x2 {
namespace {

constexpr int64_t kOne = RateBand::kOne;
constexpr int64_t kMicroseconds = 1'000'000;
/// Milliseconds: ten times as long as the period of a quota.
constexpr int64_t kLeastSum = 1000;
/// In milliseconds. If too little work is known after kLeastSum, the sums continue up to this time.
constexpr int64_t kMostSum = 10'000;
/// A Plan may give a slow host no work, so its recovery could not be noticed. After this many
/// milliseconds it counts as recovered. If it is still slow, it is detected again.
constexpr int64_t kMostIdle = 600'000;
/// All Plans count as one pattern.
constexpr uint64_t kAnyPlan = 0;

RateTrends::Ratios blame_each(const std::vector<RateTrends::Ratio>& ratios) {
  RateTrends::Ratios blamed;
  for (const RateTrends::Ratio& each : ratios) {
    if (each.is_outside) blamed[each.of] = each.ratio;
  }
  return blamed;
}

}  // namespace

HostTrend::HostTrend(int hosts, int64_t least)
    : least_(least), trends_(blame_each), sums_(static_cast<size_t>(hosts)) {}

void HostTrend::sample(int64_t now, const std::function<Work(int host)>& work_of) {
  if (!since_) since_ = now;
  bool is_enough = true;
  for (size_t host = 0; host < sums_.size(); ++host) {
    const Work work = work_of(static_cast<int>(host));
    sums_[host].amount += work.amount;
    sums_[host].microseconds += work.microseconds;
    is_enough = is_enough && sums_[host].microseconds >= least_;
  }
  if (now - *since_ < (is_enough ? kLeastSum : kMostSum)) return;
  since_ = now;
  std::vector<RateTrends::Rate> rates;
  for (int host = 0; host < static_cast<int>(sums_.size()); ++host) {
    const Work sum = std::exchange(sums_[static_cast<size_t>(host)], {});
    if (sum.microseconds < least_) continue;
    const RateTrends::Resource resource{host, host};
    const int64_t rate = sum.amount * kMicroseconds / sum.microseconds;
    rates.push_back({resource, rate * kOne / factor_of(factors_, resource)});
    seen_[host] = now;
  }
  trends_.sample(kAnyPlan, rates, factors_);
}

std::set<int> HostTrend::idle(int64_t now) const {
  std::set<int> idle;
  for (const auto& [resource, factor] : factors_) {
    if (now - seen_.at(resource.from) >= kMostIdle) idle.insert(resource.from);
  }
  return idle;
}

void HostTrend::settle(int64_t now) {
  forgotten_ = idle(now);
  apply_changes(factors_, trends_.changes());
  for (const int host : forgotten_) factors_.erase({host, host});
  trends_.settle();
}

}  // namespace q7x2
