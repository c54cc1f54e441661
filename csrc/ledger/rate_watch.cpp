#include "ledger/rate_watch.h"

#include <algorithm>
#include <cstddef>

namespace q7x2 {
namespace {

constexpr int64_t kOne = RateBand::kOne;
/// Less was sent in short messages, whose rate is latency.
constexpr int32_t kLeastKiB = 256;
constexpr int64_t kMicroseconds = 1'000'000;
constexpr int kLooks = 3;
/// After so many looks without a culprit the rates are the new normal.
constexpr int kMostStrays = 12;
constexpr size_t kMostPatterns = 16;
constexpr int64_t kLeastFactor = 5;
constexpr int64_t kRecovered = 800;

int64_t median(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

// First the hosts that explain most: a slow host's neighbours in a ring have a slow route, too.
RateWatch::Found RateWatch::blame(std::vector<Route> routes) const {
  Found found;
  const auto take = [&](Resource of, const auto& is_of) {
    std::vector<int64_t> ratios;
    for (const Route& route : routes) {
      if (is_of(route)) ratios.push_back(route.ratio);
    }
    found[of] = median(std::move(ratios));
  };
  const auto drop = [&](const auto& is_of) { std::erase_if(routes, is_of); };
  // How many routes there are, if all of them are outside; else 0.
  const auto all_outside = [&](const auto& is_of) {
    int count = 0;
    for (const Route& route : routes) {
      if (!is_of(route)) continue;
      if (!route.is_outside) return 0;
      ++count;
    }
    return count;
  };
  const auto out_of = [](int host) { return [host](const Route& r) { return r.from == host; }; };
  const auto into = [](int host) { return [host](const Route& r) { return r.to == host; }; };
  while (true) {
    int culprit = kAny;
    int most = 0;
    for (int host = 0; host < hosts_; ++host) {
      const int out = all_outside(out_of(host));
      const int in = all_outside(into(host));
      if (out == 0 || in == 0 || out + in <= most) continue;
      culprit = host;
      most = out + in;
    }
    if (culprit == kAny) break;
    take({culprit, kAny}, out_of(culprit));
    take({kAny, culprit}, into(culprit));
    drop(out_of(culprit));
    drop(into(culprit));
  }
  for (int host = 0; host < hosts_; ++host) {
    if (all_outside(out_of(host)) < 2) continue;
    take({host, kAny}, out_of(host));
    drop(out_of(host));
  }
  for (int host = 0; host < hosts_; ++host) {
    if (all_outside(into(host)) < 2) continue;
    take({kAny, host}, into(host));
    drop(into(host));
  }
  for (const Route& route : routes) {
    if (route.is_outside) found[{route.from, route.to}] = route.ratio;
  }
  return found;
}

void RateWatch::suspect(const Found& slower, const Found& faster) {
  std::map<std::pair<Resource, bool>, Suspicion> now;
  const auto add = [&](const Found& found, bool is_slower) {
    for (const auto& [resource, ratio] : found) {
      // Recovery is of what is slow.
      if (!is_slower && !factors_.contains(resource)) continue;
      const std::pair key(resource, is_slower);
      const auto before = suspicions_.find(key);
      now[key] = {before == suspicions_.end() ? 1 : before->second.looks + 1, ratio};
    }
  };
  add(slower, true);
  add(faster, false);
  suspicions_ = std::move(now);
}

bool RateWatch::decide(int64_t now, int64_t pause) {
  if (has_changed_ && now - changed_ < pause) return false;
  bool is_change = false;
  for (const auto& [key, suspicion] : suspicions_) {
    if (suspicion.looks < kLooks) continue;
    is_change = true;
    const auto known = factors_.find(key.first);
    const int64_t before = known == factors_.end() ? kOne : known->second;
    const int64_t factor = std::max(before * suspicion.ratio / kOne, kLeastFactor);
    if (factor > kRecovered) {
      factors_.erase(key.first);
    } else {
      factors_[key.first] = factor;
    }
  }
  if (!is_change) return false;
  bands_.clear();
  suspicions_.clear();
  changed_ = now;
  has_changed_ = true;
  return true;
}

bool RateWatch::look(uint64_t pattern, int64_t now, int64_t pause, std::span<const Sent> sent) {
  if (!bands_.contains(pattern) && bands_.size() == kMostPatterns) bands_.clear();
  auto& bands = bands_[pattern];
  struct Rate {
    int from, to;
    int64_t rate;
  };
  std::vector<Rate> rates;
  std::vector<int64_t> ratios;
  for (int from = 0; from < hosts_; ++from) {
    for (int to = 0; to < hosts_; ++to) {
      const Sent& each = sent[static_cast<size_t>(from * hosts_ + to)];
      if (each.kib < kLeastKiB || each.busy <= 0) continue;
      const int64_t rate = each.kib * kMicroseconds / each.busy;
      const RateBand& band = bands[{from, to}];
      rates.push_back({from, to, rate});
      if (band.is_known()) ratios.push_back(band.ratio(rate));
    }
  }
  // What all routes have in common: of the slower ones that the best quarter is slower, too.
  std::ranges::sort(ratios);
  const size_t count = ratios.size();
  const int64_t best = count > 0 ? std::clamp<int64_t>(ratios[count * 3 / 4], 1, kOne) : kOne;
  const int64_t worst = count > 0 ? std::max(ratios[(count - 1) / 4], kOne) : kOne;
  std::vector<Route> slower;
  std::vector<Route> faster;
  bool strays = false;
  for (const Rate& each : rates) {
    RateBand& band = bands[{each.from, each.to}];
    bool is_below = false;
    bool is_above = false;
    if (band.is_known()) {
      const int64_t ratio = band.ratio(each.rate);
      is_below = band.is_below(ratio * kOne / best);
      is_above = band.is_above(ratio * kOne / worst);
      slower.push_back({each.from, each.to, ratio * kOne / best, is_below});
      faster.push_back({each.from, each.to, ratio * kOne / worst, is_above});
    }
    if (is_below || is_above) {
      strays = true;
    } else {
      band.learn(each.rate);
    }
  }
  if (count == 0) return false;
  suspect(blame(std::move(slower)), blame(std::move(faster)));
  strays_ = strays && suspicions_.empty() ? strays_ + 1 : 0;
  if (strays_ == kMostStrays) {
    bands_.clear();
    strays_ = 0;
  }
  return decide(now, pause);
}

}  // namespace q7x2
