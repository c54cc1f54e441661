// Which elements a selection sends, for CPUs and GPUs: the tests for one element or one group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/random.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {

/// Whether a magnitude is sent with this Selection::least. `tied`: the element does not come after
/// Selection::last_tie. `least` is at most kInfinityBits.
Q7X2_ELEMENT bool is_selected(uint32_t magnitude, uint32_t least, bool tied) {
  return magnitude + (tied ? 1u : 0u) > least;
}

/// A random number of 32 bits is below `random_limit` with probability `ratio`.
Q7X2_ELEMENT uint64_t random_limit(double ratio) {
  const auto limit = static_cast<uint64_t>(ratio * 0x1p32);
  return limit > 0 ? limit : 1;
}

/// Whether element `index` of a group of `size` magnitudes is among its `n` largest; of equal ones
/// the first count. Zeros are never sent, and numbers that are not finite always are.
Q7X2_ELEMENT bool is_among_largest(const uint32_t* magnitudes, int size, int index, int n) {
  const uint32_t own = magnitudes[index];
  int larger = 0;
  for (int j = 0; j < size; ++j) {
    larger += (magnitudes[j] > own || (magnitudes[j] == own && j < index)) ? 1 : 0;
  }
  return (larger < n && own > 0) || own >= kInfinityBits;
}

/// How the k-th largest magnitude is found: by counting the bits of all candidates, first the upper
/// 11, then the middle 10 and the lower 10.
inline constexpr int kRadixShifts[] = {20, 10, 0};
inline constexpr int kMagnitudeBits = 31;
inline constexpr size_t kRadixBuckets = size_t{1} << 11;

/// A sample of a tensor consists of pieces of neighbours. The tensor is divided into as many equal
/// parts, and each part has one piece at a random position.
struct Sample {
  static constexpr size_t kPiece = 64;

  size_t pieces;
  size_t length;  ///< elements per piece
  size_t stride;
  RandomStream random;

  Q7X2_ELEMENT size_t size() const { return pieces * length; }
  Q7X2_ELEMENT size_t begin(size_t piece) const {
    const size_t places = stride - length + 1;
    return piece * stride + random_bits(random, static_cast<uint32_t>(piece)) % places;
  }
};

/// The sample for a tensor of `count` elements, at least one.
Q7X2_ELEMENT Sample sample_of(size_t count, uint64_t key) {
  constexpr size_t kLargestSample = size_t{1} << 16;
  constexpr size_t kSampledShare = 32;  // for smaller tensors: one of this many elements
  const size_t share = count / kSampledShare;
  const size_t wanted = share < kLargestSample ? share : kLargestSample;
  const size_t pieces = wanted < Sample::kPiece ? 1 : wanted / Sample::kPiece;
  const size_t stride = count / pieces;
  const size_t length = stride < Sample::kPiece ? stride : Sample::kPiece;
  return {pieces, length, stride, random_stream(key, 0)};
}

}  // namespace q7x2
