// Which elements a selection sends, for CPUs and GPUs: what one element or one group can tell by
// itself.
#pragma once

#include <cstdint>

#include "kernels/elements.h"
#include "kernels/value_elements.h"

namespace q7x2 {

/// Whether a magnitude is sent under Selection::least, `tied` telling that the element comes no
/// later than Selection::last_tie. `least` is not more than kInfinityBits.
Q7X2_ELEMENT bool is_selected(uint32_t magnitude, uint32_t least, bool tied) {
  return magnitude + (tied ? 1u : 0u) > least;
}

/// A random number of 32 bits is below `random_limit` with probability `ratio`.
Q7X2_ELEMENT uint64_t random_limit(double ratio) {
  const auto limit = static_cast<uint64_t>(ratio * 0x1p32);
  return limit > 0 ? limit : 1;
}

/// Whether element `index` of a group of `size` magnitudes is among its `n` largest, the first of
/// equals; zeros are not worth sending, and what is not finite always is.
Q7X2_ELEMENT bool is_among_largest(const uint32_t* magnitudes, int size, int index, int n) {
  const uint32_t own = magnitudes[index];
  int larger = 0;
  for (int j = 0; j < size; ++j) {
    larger += (magnitudes[j] > own || (magnitudes[j] == own && j < index)) ? 1 : 0;
  }
  return (larger < n && own > 0) || own >= kInfinityBits;
}

}  // namespace q7x2
