// Exact and sampled selection of the largest magnitudes.
#include "kernels/sparse_select.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/random.h"
#include "kernels/sparse_kernels.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

// A sample is of pieces of neighbours, one at a random place in each of as many equal parts.
constexpr size_t kPiece = 64;
constexpr size_t kLargestSample = size_t{1} << 16;
constexpr size_t kSampledShare = 32;  // one element in so many, of smaller tensors
constexpr size_t kLeastToSample = 1 << 14;

constexpr uint64_t kNoTie = ~uint64_t{0};

std::vector<uint32_t> sample(const ReadElements& read, size_t count, uint64_t key) {
  const size_t wanted = std::min(kLargestSample, count / kSampledShare);
  const size_t pieces = std::max<size_t>(wanted / kPiece, 1);
  const size_t stride = count / pieces;
  const size_t length = std::min(kPiece, stride);
  const RandomStream random = random_stream(key, 0);
  std::vector<uint32_t> magnitudes;
  magnitudes.reserve(pieces * length);
  for (size_t piece = 0; piece < pieces; ++piece) {
    const size_t places = stride - length + 1;
    const auto offset = random_bits(random, static_cast<uint32_t>(piece)) % places;
    const float* values = read(piece * stride + offset, length);
    for (size_t i = 0; i < length; ++i) magnitudes.push_back(magnitude_bits(values[i]));
  }
  return magnitudes;
}

/// The `rank`-th largest, from 0.
uint32_t largest(std::vector<uint32_t>& magnitudes, size_t rank) {
  const auto at = magnitudes.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(magnitudes.begin(), at, magnitudes.end(), std::greater<>());
  return *at;
}

/// The k-th largest magnitude, and how many are as large but are not among the k largest.
struct Boundary {
  uint32_t magnitude = 0;
  size_t surplus = 0;
  size_t ties = 0;
};

/// Nothing where the boundary is not between the bounds that a sample gives.
std::optional<Boundary> boundary_near_sample(const ReadElements& read, size_t count, size_t k,
                                             uint64_t key) {
  std::vector<uint32_t> sampled = sample(read, count, key);
  const double size = static_cast<double>(sampled.size());
  const double ratio = static_cast<double>(k) / static_cast<double>(count);
  // Six standard deviations, if a piece of neighbours tells no more than a quarter of its elements
  // would at random places.
  const double slack = 6 * std::sqrt(4 * size * ratio * (1 - ratio)) + 8;
  const double upper_rank = ratio * size - slack;
  const double lower_rank = ratio * size + slack;
  const uint32_t high =
      upper_rank < 0 ? kInfinityBits : largest(sampled, static_cast<size_t>(upper_rank));
  const uint32_t low =
      lower_rank >= size ? 1 : std::max(largest(sampled, static_cast<size_t>(lower_rank)), 1u);

  const SparseKernels& kernels = dispatched_sparse_kernels();
  std::array<uint64_t, kLargestRead / 64> above{};
  std::array<uint64_t, kLargestRead / 64> between{};
  const size_t most = count / 4;
  const auto expected = static_cast<size_t>(2 * slack / size * static_cast<double>(count));
  std::vector<float> kept(std::min(expected, most) + kLargestRead);
  size_t kept_count = 0;
  size_t above_count = 0;
  for (size_t begin = 0; begin < count; begin += kLargestRead) {
    const size_t length = std::min(kLargestRead, count - begin);
    const float* values = read(begin, length);
    above_count += kernels.mark(values, length, high, 0, above.data());
    kernels.mark(values, length, low, length, between.data());
    for (size_t word = 0; word < mask_words(length); ++word) between[word] &= ~above[word];
    if (kept.size() - kept_count < length) kept.resize(2 * kept.size());
    kept_count += kernels.compact(values, between.data(), length, kept.data() + kept_count);
    if (above_count >= k || kept_count > most) return std::nullopt;
  }
  if (above_count + kept_count < k) {
    if (low > 1) return std::nullopt;
    return Boundary{};
  }
  std::vector<uint32_t> magnitudes(kept_count);
  for (size_t i = 0; i < kept_count; ++i) magnitudes[i] = magnitude_bits(kept[i]);
  const size_t wanted = k - above_count;
  const uint32_t magnitude = largest(magnitudes, wanted - 1);
  size_t larger = 0;
  size_t equal = 0;
  for (const uint32_t each : magnitudes) {
    larger += each > magnitude ? 1 : 0;
    equal += each == magnitude ? 1 : 0;
  }
  return Boundary{magnitude, larger + equal - wanted, wanted - larger};
}

Boundary boundary_by_radix(const ReadElements& read, size_t count, size_t k) {
  constexpr std::array kShifts = {20, 10, 0};
  constexpr size_t kBuckets = size_t{1} << 11;
  Boundary boundary;
  boundary.ties = k;
  uint32_t prefix = 0;  // of the k-th largest, above the shift of the pass before
  int prefix_shift = 31;
  for (const int shift : kShifts) {
    std::array<size_t, kBuckets> sizes{};
    const uint32_t mask = (uint32_t{1} << (prefix_shift - shift)) - 1;
    for (size_t begin = 0; begin < count; begin += kLargestRead) {
      const size_t length = std::min(kLargestRead, count - begin);
      const float* values = read(begin, length);
      for (size_t i = 0; i < length; ++i) {
        const uint32_t magnitude = magnitude_bits(values[i]);
        if (magnitude >> prefix_shift == prefix) ++sizes[(magnitude >> shift) & mask];
      }
    }
    size_t bucket = mask;
    while (sizes[bucket] < boundary.ties) boundary.ties -= sizes[bucket--];
    boundary.surplus = sizes[bucket] - boundary.ties;
    prefix = (prefix << (prefix_shift - shift)) | static_cast<uint32_t>(bucket);
    prefix_shift = shift;
  }
  boundary.magnitude = prefix;
  return boundary;
}

/// The index of the `ties`-th element of a magnitude.
uint64_t find_tie(const ReadElements& read, size_t count, uint32_t magnitude, size_t ties) {
  for (size_t begin = 0; begin < count; begin += kLargestRead) {
    const size_t length = std::min(kLargestRead, count - begin);
    const float* values = read(begin, length);
    size_t here = 0;
    for (size_t i = 0; i < length; ++i) here += magnitude_bits(values[i]) == magnitude ? 1 : 0;
    if (here < ties) {
      ties -= here;
      continue;
    }
    for (size_t i = 0;; ++i) {
      if (magnitude_bits(values[i]) == magnitude && --ties == 0) return begin + i;
    }
  }
  return kNoTie;
}

}  // namespace

size_t selected_count(double ratio, size_t count) {
  return std::min(count, static_cast<size_t>(std::ceil(ratio * static_cast<double>(count))));
}

Selection select_largest(const ReadElements& read, size_t count, size_t k, uint64_t key) {
  if (k >= count) return {1, kNoTie};
  std::optional<Boundary> boundary;
  if (count >= kLeastToSample) boundary = boundary_near_sample(read, count, k, key);
  if (!boundary) boundary = boundary_by_radix(read, count, k);
  if (boundary->magnitude == 0) return {1, kNoTie};
  if (boundary->magnitude >= kInfinityBits) return {kInfinityBits, kNoTie};
  if (boundary->surplus == 0) return {boundary->magnitude, kNoTie};
  return {boundary->magnitude, find_tie(read, count, boundary->magnitude, boundary->ties)};
}

Selection select_sampled(const ReadElements& read, size_t count, double ratio, uint64_t key) {
  if (count == 0) return {1, kNoTie};
  std::vector<uint32_t> sampled = sample(read, count, key);
  const size_t rank = selected_count(ratio, sampled.size());
  return {std::clamp(largest(sampled, rank - 1), 1u, kInfinityBits), kNoTie};
}

Selection select_blocks(const ReadElements& read, size_t count, double ratio, uint64_t key) {
  static_assert(kLargestRead % kSelectBlock == 0);
  const SparseKernels& kernels = dispatched_sparse_kernels();
  std::vector<float> norms;
  norms.reserve(count / kSelectBlock + 1);
  for (size_t begin = 0; begin < count; begin += kLargestRead) {
    const size_t length = std::min(kLargestRead, count - begin);
    const float* values = read(begin, length);
    for (size_t at = 0; at < length; at += kSelectBlock) {
      norms.push_back(kernels.norm(values + at, std::min<size_t>(kSelectBlock, length - at)));
    }
  }
  const auto read_norms = [&](size_t first, size_t) { return norms.data() + first; };
  Selection selection =
      select_largest(read_norms, norms.size(), selected_count(ratio, norms.size()), key);
  if (selection.last_tie != kNoTie) selection.last_tie *= kSelectBlock;
  return selection;
}

}  // namespace q7x2
