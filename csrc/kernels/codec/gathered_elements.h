// GatheredElements: those of a tensor's elements that are sent, found in the one pass that also
// finds which those are.
//
// The bound above which magnitudes are sent is known only when all have been seen. A bound that is
// surely not above it is known before; what passes that is gathered, somewhat more than is sent,
// and sorted out in the end. So encoders need not read the tensor again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/recycled.h"

namespace q7x2 {

class GatheredElements {
 public:
  /// Room for those of `count` elements, about `expected` of them.
  GatheredElements(size_t count, size_t expected);
  /// Those of `count` elements that have a bit in `mask`; `take` brings their values.
  GatheredElements(size_t count, const uint64_t* mask);

  /// Of the next `count` elements those whose magnitude has the bits `least` or more. All calls but
  /// the last are of kBlock elements.
  void add(const float* values, size_t count, uint32_t least);

  /// Keeps magnitudes of more than `least`, and of the equal ones the first `ties`. Returns the
  /// index of the last of those; ~0 where there is none.
  uint64_t keep(uint32_t least, size_t ties);

  /// The values of all that are gathered.
  void take(const float* values);

  size_t size() const { return size_; }
  std::span<const float> values() const { return {values_.data(), size_}; }
  /// Those from element `first` on.
  const float* values_from(size_t first) const { return values_.data() + rank_of(first); }
  /// How many are in front of element `last` and not in front of `first`.
  size_t count_between(size_t first, size_t last) const { return rank_of(last) - rank_of(first); }
  /// A bit for each of the elements [first, first + count); returns how many are set.
  size_t copy_mask(size_t first, size_t count, uint64_t* mask) const;

  static constexpr size_t kBlock = 8192;

 private:
  /// How many there are in front of an element.
  size_t rank_of(size_t element) const;
  /// The element that the gathered one with this rank is.
  size_t element_of(size_t rank) const;

  Recycled<uint64_t> mask_;  // and one more word
  Recycled<float> values_;
  std::vector<size_t> before_;  // by block: how many there are in front of it
  size_t size_ = 0;
  size_t seen_ = 0;
};

}  // namespace q7x2
