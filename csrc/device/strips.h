// Strips: the steps in which the regions of a call are copied between a device and the host.
//
//   region 0  [ strip 0 | strip 1 | strip 2 ]      Strip k of every region is copied before any
//   region 1  [ strip 0 | strip 1 ]                strip k + 1, in the order of a call's slices.
//
// So a call can begin with the first strips while the rest is still being copied. A strip is a run
// of bytes at the same position in each region. A small call has one strip, because each copy also
// costs time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

namespace q7x2 {

class Strips {
 public:
  /// If there are several strips, each has at least this many bytes in all regions together.
  static constexpr size_t kLeastBytes = size_t{1} << 20;
  /// Maximum number of copies for all strips of a call, if it is more than one per region.
  static constexpr size_t kMostCopies = 64;
  /// The same for a call that needs all of its regions at once.
  static constexpr size_t kOnePerRegion = 0;
  /// Strips begin at multiples of this many bytes.
  static constexpr size_t kUnit = 64;

  /// `regions`: the size of each region in bytes.
  explicit Strips(std::span<const size_t> regions, size_t most_copies = kMostCopies) {
    if (regions.empty()) return;
    longest_ = *std::ranges::max_element(regions);
    const size_t total = std::accumulate(regions.begin(), regions.end(), size_t{0});
    const size_t most = std::max<size_t>(most_copies / regions.size(), 1);
    const size_t wanted = std::clamp<size_t>(total / kLeastBytes, 1, most);
    step_ = std::max((longest_ + wanted * kUnit - 1) / (wanted * kUnit) * kUnit, kUnit);
    count_ = (longest_ + step_ - 1) / step_;
  }

  size_t count() const { return count_; }
  /// The position at which strip `k` begins in a region, if the region is that long. Strip
  /// `count()` begins at the end of the longest region.
  size_t begin(size_t k) const { return std::min(k * step_, longest_); }
  /// Number of strips that are complete when the first `bytes` bytes of each region have arrived.
  size_t within(size_t bytes) const { return bytes >= longest_ ? count_ : bytes / step_; }

 private:
  size_t longest_ = 0;
  size_t step_ = kUnit;
  size_t count_ = 0;
};

}  // namespace q7x2
