// GatheredElements: the elements of a tensor that are sent, collected in the same pass that finds
// out which these are.
//
// The bound above which magnitudes are sent is known only after the pass. A value that is surely
// not above the bound is known before. The pass gathers all elements above this value, which are
// somewhat more than are sent, and removes the others at the end. So encoders need not read the
// tensor again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/recycled.h"

namespace q7x2 {

class GatheredElements {
 public:
  /// Reserves room for about `expected` of `count` elements.
  GatheredElements(size_t count, size_t expected);
  /// The elements of `count` that have a bit in `mask`; `take` then copies their values.
  GatheredElements(size_t count, const uint64_t* mask);

  /// Gathers those of the next `count` elements whose magnitude has at least the bits `least`.
  /// Every call but the last must have kBlock elements.
  void add(const float* values, size_t count, uint32_t least);

  /// Keeps magnitudes above `least`, and the first `ties` of the equal ones. Returns the index of
  /// the last of these; ~0 if there is none.
  uint64_t keep(uint32_t least, size_t ties);

  /// Copies the values of all gathered elements.
  void take(const float* values);

  size_t size() const { return size_; }
  std::span<const float> values() const { return {values_.data(), size_}; }
  /// The values of the gathered elements, from element `first` on.
  const float* values_from(size_t first) const { return values_.data() + rank_of(first); }
  /// Number of gathered elements in [first, last).
  size_t count_between(size_t first, size_t last) const { return rank_of(last) - rank_of(first); }
  /// Writes a bit for each of the elements [first, first + count); returns how many are set.
  size_t copy_mask(size_t first, size_t count, uint64_t* mask) const;

  static constexpr size_t kBlock = 8192;

 private:
  /// Number of gathered elements before an element.
  size_t rank_of(size_t element) const;
  /// The element with this rank among the gathered ones.
  size_t element_of(size_t rank) const;

  Recycled<uint64_t> mask_;  // and one more word
  Recycled<float> values_;
  std::vector<size_t> before_;  // by block: number of gathered elements before it
  size_t size_ = 0;
  size_t seen_ = 0;
};

}  // namespace q7x2
