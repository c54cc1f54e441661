// DurationHistogram: counts the durations of operations in a fixed number of buckets.
//
// Each power of two from about 1 microsecond to about 4 minutes has eight buckets of equal width,
// so the error of a quantile is at most a sixteenth. Shorter and longer durations are counted in
// the first and the last one. Tene, "HdrHistogram", 2012.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

class DurationHistogram {
 public:
  void add(int64_t nanoseconds) { ++counts_[bucket_of(nanoseconds)]; }

  /// The middle of the bucket that contains the quantile, in nanoseconds; 0 if the histogram is
  /// empty. `part`: 0 to 1.
  int64_t quantile(double part) const {
    uint64_t total = 0;
    for (const uint64_t count : counts_) total += count;
    if (total == 0) return 0;
    const auto rank = static_cast<uint64_t>(part * static_cast<double>(total - 1));
    uint64_t before = 0;
    size_t bucket = 0;
    while (before + counts_[bucket] <= rank) before += counts_[bucket++];
    return (lower_bound(bucket) + lower_bound(bucket + 1)) / 2;
  }

 private:
  static constexpr int kSteps = 3;      // bits: buckets per power of two
  static constexpr int kFirstBit = 10;  // 1,024 ns
  static constexpr int kLastBit = 38;   // 275 s
  static constexpr size_t kBuckets = size_t{kLastBit - kFirstBit} << kSteps;

  static size_t bucket_of(int64_t nanoseconds) {
    constexpr int64_t kLeast = int64_t{1} << kFirstBit;
    constexpr int64_t kMost = (int64_t{1} << kLastBit) - 1;
    const auto value = static_cast<uint64_t>(std::clamp(nanoseconds, kLeast, kMost));
    const int bit = std::bit_width(value) - 1;
    const auto step = static_cast<size_t>(value >> (bit - kSteps)) - (size_t{1} << kSteps);
    return (static_cast<size_t>(bit - kFirstBit) << kSteps) + step;
  }
  static int64_t lower_bound(size_t bucket) {
    const int bit = kFirstBit + static_cast<int>(bucket >> kSteps);
    const auto step = static_cast<int64_t>(bucket & ((size_t{1} << kSteps) - 1));
    return (int64_t{1} << bit) + (step << (bit - kSteps));
  }

  std::array<uint64_t, kBuckets> counts_{};
};

}  // namespace q7x2
