#include "ledger/rate_trends.h"

#include <algorithm>

namespace q7x2 {
namespace {

constexpr int64_t kOne = RateBand::kOne;
constexpr int kSamples = 3;
/// A route between two hosts is the cause if no other route agrees with it. It shares NICs with
/// others, and its rate varies with theirs. So it needs more samples.
constexpr int kSamplesOfRoute = 6;
/// After this many rate samples outside without a cause, the rates count as normal.
constexpr int kMostStrays = 12;
/// If the best quarter of the rates falls below this ratio, that is a collapse. Other work on a
/// machine seldom slows all rates so much for seconds.
constexpr int64_t kCollapsed = 300;
constexpr size_t kMostPatterns = 16;
constexpr int64_t kLeastFactor = 5;
/// Better ratios would not be found slow.
constexpr int64_t kRecovered = RateBand::kMostEdge;

/// The common change of all rates: if the best quarter is slower, that is the part of the slowdown
/// that all share; if the worst quarter is faster, the part of the speed-up that all share.
struct Common {
  explicit Common(std::vector<int64_t> ratios) {
    if (ratios.empty()) return;
    std::ranges::sort(ratios);
    best = std::clamp<int64_t>(ratios[ratios.size() * 3 / 4], 1, kOne);
    worst = std::max(ratios[(ratios.size() - 1) / 4], kOne);
  }

  int64_t best = kOne;
  int64_t worst = kOne;
};

int samples_needed(const RateTrends::Resource& of) {
  const bool is_route = of.kind == RatedResource::Kind::kNetwork && of.from != kAnyHost &&
                        of.to != kAnyHost && of.from != of.to;
  return is_route ? kSamplesOfRoute : kSamples;
}

}  // namespace

void RateTrends::sample(uint64_t pattern, std::span<const Rate> rates, const Ratios& slow,
                        int weight) {
  if (!bands_.contains(pattern) && bands_.size() == kMostPatterns) bands_.clear();
  Bands& bands = bands_[pattern];
  std::vector<int64_t> ratios;
  for (const Rate& each : rates) {
    const RateBand& band = bands[each.of];
    if (band.is_known()) ratios.push_back(band.ratio(each.rate));
  }
  const bool is_any_known = !ratios.empty();
  const Common common(std::move(ratios));
  if (const Ratios collapsed = blame_collapse(bands, rates, common.best); !collapsed.empty()) {
    suspect(collapsed, {}, slow, weight);
    return;
  }
  std::vector<Ratio> slower;
  std::vector<Ratio> faster;
  bool strays = false;
  for (const Rate& each : rates) {
    RateBand& band = bands[each.of];
    bool is_below = false;
    bool is_above = false;
    if (band.is_known()) {
      const int64_t below = band.ratio(each.rate) * kOne / common.best;
      const int64_t above = band.ratio(each.rate) * kOne / common.worst;
      is_below = band.is_below(below);
      is_above = band.is_above(above);
      slower.push_back({each.of, below, is_below});
      faster.push_back({each.of, above, is_above});
    }
    if (is_below || is_above) {
      strays = true;
    } else {
      band.learn(each.rate);
    }
  }
  if (!is_any_known) return;
  suspect(blame_(std::move(slower)), blame_(std::move(faster)), slow, weight);
  strays_ = strays && suspicions_.empty() ? strays_ + 1 : 0;
  if (strays_ == kMostStrays) forget();
}

RateTrends::Ratios RateTrends::blame_collapse(Bands& bands, std::span<const Rate> rates,
                                              int64_t best) const {
  if (best >= kCollapsed || !blame_all_) return {};
  std::vector<Ratio> all;
  for (const Rate& each : rates) {
    const RateBand& band = bands[each.of];
    if (!band.is_known()) return {};
    const int64_t ratio = band.ratio(each.rate);
    all.push_back({each.of, ratio, band.is_below(ratio)});
  }
  return blame_all_(std::move(all));
}

void RateTrends::suspect(const Ratios& slower, const Ratios& faster, const Ratios& slow,
                         int weight) {
  decltype(suspicions_) now;
  const auto add = [&](const Ratios& blamed, bool is_slower) {
    for (const auto& [resource, ratio] : blamed) {
      const std::pair key(resource, is_slower);
      const auto before = suspicions_.find(key);
      now[key] = {(before == suspicions_.end() ? 0 : before->second.samples) + weight, ratio};
    }
  };
  Ratios recovered = faster;
  std::erase_if(recovered, [&](const auto& each) { return !slow.contains(each.first); });
  add(recovered, false);
  if (recovered.empty()) add(slower, true);
  suspicions_ = std::move(now);
}

RateTrends::Ratios RateTrends::changes() const {
  Ratios changes;
  for (const auto& [key, suspicion] : suspicions_) {
    if (suspicion.samples >= samples_needed(key.first)) changes[key.first] = suspicion.ratio;
  }
  return changes;
}

void RateTrends::forget() {
  bands_.clear();
  suspicions_.clear();
  strays_ = 0;
}

int64_t factor_of(const RateTrends::Ratios& factors, const RateTrends::Resource& resource) {
  const auto known = factors.find(resource);
  return known == factors.end() ? kOne : known->second;
}

void apply_changes(RateTrends::Ratios& factors, const RateTrends::Ratios& changes) {
  for (const auto& [resource, ratio] : changes) {
    const int64_t factor = std::max(factor_of(factors, resource) * ratio / kOne, kLeastFactor);
    if (factor > kRecovered) {
      factors.erase(resource);
    } else {
      factors[resource] = factor;
    }
  }
}

}  // namespace q7x2
