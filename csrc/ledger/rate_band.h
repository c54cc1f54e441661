// RateBand: the range of rates that are normal for a resource.
//
//           ------------------------  median / edge         above
//     . . :: . : . :: : . : ::. : .   median of the normal rates
//           ------------------------  median x edge         below
//
// The width of the band is six standard errors of the rates, estimated by their median absolute
// deviation. It always contains rates within 35 % of the median, and never a rate below 0.4 of the
// median. Uses only integers: ranks with the same rates make the same decisions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace q7x2 {

/// `values` must contain at least one value.
inline int64_t median_of(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class RateBand {
 public:
  static constexpr int64_t kOne = 1000;      ///< ratios are in thousandths
  static constexpr int64_t kMostEdge = 650;  ///< better ratios are always inside

  /// Whether enough rates are known to judge another one.
  bool is_known() const { return rates_.size() >= kFewest; }
  /// Ratio of a rate to the median; requires `is_known`.
  int64_t ratio(int64_t rate) const { return rate * kOne / std::max<int64_t>(median_, 1); }
  bool is_below(int64_t ratio) const { return ratio < edge_; }
  bool is_above(int64_t ratio) const { return ratio * edge_ > kOne * kOne; }

  /// Adds a rate that counts as normal.
  void learn(int64_t rate) {
    if (rates_.size() == kMost) rates_.erase(rates_.begin());
    rates_.push_back(rate);
    median_ = median_of(rates_);
    std::vector<int64_t> deviations;
    for (const int64_t each : rates_) deviations.push_back(std::abs(each - median_));
    const int64_t deviation = ratio(median_of(std::move(deviations)));
    edge_ = std::clamp(kOne - deviation * kDeviations / kOne, kLeastEdge, kMostEdge);
  }

 private:
  static constexpr size_t kFewest = 5;
  static constexpr size_t kMost = 21;
  /// Six standard errors of a normal distribution, in median absolute deviations.
  static constexpr int64_t kDeviations = 8896;
  static constexpr int64_t kLeastEdge = 400;

  std::vector<int64_t> rates_;  // the newest is last
  int64_t median_ = 0;
  int64_t edge_ = kMostEdge;
};

}  // namespace q7x2
