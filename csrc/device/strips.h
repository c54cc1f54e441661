// Strips: the steps in which the regions of a call pass between a device and the host.
//
//   region 0  [ strip 0 | strip 1 | strip 2 ]      Strip k of every region passes before strip
//   region 1  [ strip 0 | strip 1 ]                k + 1 of any: as the slices of a call do.
//
// So a call can begin with what is there while the rest is on its way. A strip is a run of bytes at
// the same place in each region. Few bytes pass in one strip, because each copy costs time, too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

namespace q7x2 {

class Strips {
 public:
  /// A strip has at least so many bytes of all regions together, if there are several strips.
  static constexpr size_t kLeastBytes = size_t{1} << 20;
  /// All strips of a call together are at most so many copies, or one per region.
  static constexpr size_t kMostCopies = 64;
  /// The same where a call needs all of its regions at once.
  static constexpr size_t kOnePerRegion = 0;
  /// Strips begin at multiples of so many bytes.
  static constexpr size_t kUnit = 64;

  /// `regions`: the bytes of each.
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
  /// Where strip `k` of a region begins, if the region reaches so far. Strip `count()` begins at
  /// the end of the longest one.
  size_t begin(size_t k) const { return std::min(k * step_, longest_); }
  /// How many strips are complete when the first `bytes` of each region are there.
  size_t within(size_t bytes) const { return bytes >= longest_ ? count_ : bytes / step_; }

 private:
  size_t longest_ = 0;
  size_t step_ = kUnit;
  size_t count_ = 0;
};

}  // namespace q7x2
