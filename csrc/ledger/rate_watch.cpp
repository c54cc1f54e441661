#include "ledger/rate_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace q7x2 {
namespace {

constexpr int64_t kOne = RateBand::kOne;
constexpr int64_t kMicroseconds = 1'000'000;
constexpr int64_t kMillion = 1'000'000;
/// With fewer KiB the messages are short, and their rate is determined by latency.
constexpr int32_t kLeastSentKiB = 256;
/// Microseconds, total of all ranks of a host. Shorter times depend too much on single turns of
/// other processes.
constexpr int64_t kLeastReducing = 5000;
constexpr int64_t kLeastReady = 20'000;
/// Thousandths: factors of a processor with a smaller difference count as equal.
constexpr int64_t kAlike = 800;
/// Milliseconds of traffic for which a rate sample counts once more: some seconds are as good as
/// three rate samples at intervals of a tenth of a second.
constexpr int64_t kSampleOfTraffic = 1000;
/// Milliseconds without traffic after which a slow route counts as recovered.
constexpr int64_t kMostIdle = 600'000;
constexpr int kSamples = 3;
/// Thousandths of the usual share of the promised rate: a host with less counts as slow.
constexpr int64_t kBroken = 200;
/// Number of rate samples that count as the first ones.
constexpr int kFirstSamples = 8;

bool is_route(const RatedResource& of) {
  return of.from != kAnyHost && of.to != kAnyHost && of.from != of.to;
}

}  // namespace

RateWatch::RateWatch(Wiring wiring)
    : wiring_(std::move(wiring)),
      measured_(wiring_),
      layout_{static_cast<int>(wiring_.rack_of.size())},
      links_(
          [this](std::vector<RateTrends::Ratio> routes) {
            return blame_links(std::move(routes), wiring_);
          },
          [this](const std::vector<RateTrends::Ratio>& routes) {
            return blame_all_in_use(routes, wiring_);
          }),
      reductions_(layout_.hosts, kLeastReducing),
      turns_(layout_.hosts, kLeastReady) {}

bool RateWatch::sample(uint64_t pattern, int64_t now, int64_t pause, std::span<const Work> work) {
  sample_links(pattern, now, work);
  if (pattern == 0) return decide(now, pause);
  const auto at = [&](size_t index) {
    return HostTrend::Work{work[index].amount, work[index].microseconds};
  };
  reductions_.sample(now, [&](int host) { return at(layout_.reduced(host)); });
  turns_.sample(now, [&](int host) { return at(layout_.turns(host)); });
  return decide(now, pause);
}

void RateWatch::sample_links(uint64_t pattern, int64_t now, std::span<const Work> work) {
  std::vector<RateTrends::Rate> rates;
  int64_t busy = 0;
  for (int from = 0; from < layout_.hosts; ++from) {
    for (int to = 0; to < layout_.hosts; ++to) {
      const Work& each = work[layout_.sent(from, to)];
      if (from == to || each.amount < kLeastSentKiB || each.microseconds <= 0) continue;
      const bool is_linked = wiring_.is_linked(from, to);
      const Resource of{from, to, is_linked ? Resource::Kind::kLink : Resource::Kind::kNetwork};
      const int64_t rate = each.amount * kMicroseconds / each.microseconds;
      const int64_t most = measured_.promise(from, to);
      rates.push_back({of, most > 0 ? std::min(rate, most) : rate});
      busy = std::max<int64_t>(busy, each.microseconds);
      rates_[of] = rates.back().rate;
      seen_[of] = now;
    }
  }
  // The times of several connections are added up, but never exceed the time that has passed.
  const int64_t traffic = std::min(busy / 1000, now - sampled_.value_or(now));
  const int weight = 1 + static_cast<int>(std::min<int64_t>(traffic / kSampleOfTraffic, kSamples));
  sampled_ = now;
  try_again(rates, weight);
  if (promise_samples_ < kFirstSamples) check_promises(rates, weight);
  if (pattern != 0) links_.sample(pattern, rates, of_links_, weight);
}

void RateWatch::check_promises(const std::vector<RateTrends::Rate>& rates, int weight) {
  std::vector<RateTrends::Ratio> kept;
  std::vector<int64_t> all;
  for (const auto& [of, rate] : rates) {
    const int64_t promise = wiring_.promise(of.from, of.to);
    if (promise == 0 || of.kind != Resource::Kind::kNetwork) continue;
    kept.push_back({of, rate * kMillion / promise, false});
    all.push_back(kept.back().ratio);
  }
  if (all.empty()) return;
  ++promise_samples_;
  const auto best = all.begin() + static_cast<std::ptrdiff_t>(all.size() * 3 / 4);
  std::nth_element(all.begin(), best, all.end());
  const int64_t usual = std::max<int64_t>(*best, 1);
  for (RateTrends::Ratio& each : kept) {
    each.ratio = each.ratio * kOne / usual;
    each.is_outside = each.ratio < kBroken;
  }
  Factors broken = blame_links(std::move(kept), wiring_);
  // A single route is no evidence: it may share a NIC with many.
  std::erase_if(broken, [&](const auto& each) {
    const auto& [from, to, kind] = each.first;
    return kind != Resource::Kind::kNetwork || is_route(each.first) ||
           !broken.contains({to, from, kind});
  });
  const bool are_the_same = std::ranges::equal(broken, broken_, {}, &Factors::value_type::first,
                                               &Factors::value_type::first);
  broken_samples_ = (are_the_same ? broken_samples_ : 0) + weight;
  broken_ = std::move(broken);
}

RateWatch::Factors RateWatch::broken_promises() const {
  return broken_samples_ >= kSamples ? broken_ : Factors{};
}

void RateWatch::try_again(const std::vector<RateTrends::Rate>& rates, int weight) {
  for (const auto& [of, rate] : rates) {
    const auto trial = trials_.find(of);
    if (trial == trials_.end()) continue;
    const bool is_slow = rate * RateBand::kMostEdge < trial->second.rate * kOne;
    trial->second.samples = is_slow ? std::max(trial->second.samples, 0) + weight
                                    : std::min(trial->second.samples, 0) - weight;
  }
  std::erase_if(trials_, [](const auto& trial) { return trial.second.samples <= -kSamples; });
}

std::set<RateWatch::Resource> RateWatch::idle_links(int64_t now) const {
  std::set<Resource> idle;
  for (const auto& [of, factor] : of_links_) {
    if (!is_route(of)) continue;
    const auto seen = seen_.find(of);
    if (seen == seen_.end() || now - seen->second >= kMostIdle) idle.insert(of);
  }
  return idle;
}

RateWatch::Factors RateWatch::failed_trials() const {
  Factors failed;
  for (const auto& [of, trial] : trials_) {
    if (trial.samples >= kSamples) failed[of] = trial.factor;
  }
  return failed;
}

bool RateWatch::decide(int64_t now, int64_t pause) {
  if (changed_ && now - *changed_ < pause) return false;
  const RateTrends::Ratios links = links_.changes();
  if (links.empty() && idle_links(now).empty() && failed_trials().empty() &&
      broken_promises().empty() && !reductions_.has_changed(now) && !turns_.has_changed(now)) {
    return false;
  }
  forgotten_.clear();
  take_links(now, links);
  for (HostTrend* const hosts : {&reductions_, &turns_}) {
    hosts->settle(now);
    for (const int host : hosts->forgotten()) forgotten_.insert({host, host});
  }
  Factors now_slow = of_processors();
  now_slow.insert(of_links_.begin(), of_links_.end());
  if (now_slow == factors_) return false;
  factors_ = std::move(now_slow);
  links_.forget();
  changed_ = now;
  return true;
}

void RateWatch::take_links(int64_t now, const Factors& changes) {
  for (const Resource& of : idle_links(now)) {
    trials_[of] = {of_links_.at(of), slow_[of]};
    of_links_.erase(of);
    forgotten_.insert(of);
  }
  for (const auto& [of, factor] : failed_trials()) {
    of_links_[of] = factor;
    trials_.erase(of);
  }
  apply_changes(of_links_, changes);
  apply_changes(of_links_, broken_promises());
  broken_.clear();
  std::erase_if(slow_, [&](const auto& each) { return !of_links_.contains(each.first); });
  for (const auto& [of, factor] : of_links_) {
    // Routes of a slow cable are slow even without traffic.
    if (is_route(of) && slow_.try_emplace(of, rates_[of]).second) seen_[of] = now;
  }
}

// The two kinds of rates seldom agree exactly, and one may follow the other.
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

}  // namespace q7x2
