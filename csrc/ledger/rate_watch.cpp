#include "ledger/rate_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace q7x2 {
namespace {

constexpr int64_t kOne = RateBand::kOne;
constexpr int64_t kMicroseconds = 1'000'000;
/// Less was sent in short messages, whose rate is latency.
constexpr int32_t kLeastSentKiB = 256;
/// Microseconds, of all ranks of a host. In less time, one turn of another process is too much.
constexpr int64_t kLeastReducing = 5000;
constexpr int64_t kLeastReady = 20'000;
/// Thousandths: factors of a processor that differ by less are the same.
constexpr int64_t kAlike = 800;

}  // namespace

RateWatch::RateWatch(int hosts)
    : layout_{hosts},
      links_([hosts](std::vector<RateTrends::Ratio> routes) {
        return blame_links(std::move(routes), hosts);
      }),
      reductions_(hosts, kLeastReducing),
      turns_(hosts, kLeastReady) {}

bool RateWatch::look(uint64_t pattern, int64_t now, int64_t pause, std::span<const Work> work) {
  look_at_links(pattern, work);
  const auto at = [&](size_t index) {
    return HostTrend::Work{work[index].amount, work[index].microseconds};
  };
  reductions_.look(now, [&](int host) { return at(layout_.reduced(host)); });
  turns_.look(now, [&](int host) { return at(layout_.turns(host)); });
  return decide(now, pause);
}

void RateWatch::look_at_links(uint64_t pattern, std::span<const Work> work) {
  std::vector<RateTrends::Rate> rates;
  for (int from = 0; from < layout_.hosts; ++from) {
    for (int to = 0; to < layout_.hosts; ++to) {
      const Work& each = work[layout_.sent(from, to)];
      if (from == to || each.amount < kLeastSentKiB || each.microseconds <= 0) continue;
      rates.push_back({{from, to}, each.amount * kMicroseconds / each.microseconds});
    }
  }
  links_.look(pattern, rates, of_links_);
}

bool RateWatch::decide(int64_t now, int64_t pause) {
  if (changed_ && now - *changed_ < pause) return false;
  const RateTrends::Ratios links = links_.changes();
  if (links.empty() && !reductions_.has_changed(now) && !turns_.has_changed(now)) return false;
  apply_changes(of_links_, links);
  reductions_.settle(now);
  turns_.settle(now);
  Factors now_slow = of_processors();
  now_slow.insert(of_links_.begin(), of_links_.end());
  if (now_slow == factors_) return false;
  factors_ = std::move(now_slow);
  links_.forget();
  changed_ = now;
  return true;
}

// The two kinds of rates seldom agree on the last digit, and one may follow the other.
RateWatch::Factors RateWatch::of_processors() const {
  Factors all = reductions_.factors();
  for (const auto& [host, factor] : turns_.factors()) {
    const auto known = all.try_emplace(host, factor).first;
    known->second = std::min(known->second, factor);
  }
  for (auto& [host, factor] : all) {
    const int64_t before = factor_of(factors_, host);
    if (factor * kAlike < before * kOne && before * kAlike < factor * kOne) factor = before;
  }
  return all;
}

std::set<int> RateWatch::forgotten() const {
  std::set<int> all = reductions_.forgotten();
  all.insert(turns_.forgotten().begin(), turns_.forgotten().end());
  return all;
}

}  // namespace q7x2
