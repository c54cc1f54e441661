// Exact and sampled selection of the largest magnitudes.
#include "kernels/codec/sparse_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/value_elements.h"

namespace q7x2 {
namespace {

constexpr size_t kLeastToSample = 1 << 14;
// The largest share of elements that is gathered. With more, messages are nearly dense.
constexpr double kMostGathered = 0.125;
static_assert(kLargestRead == GatheredElements::kBlock);

constexpr uint64_t kNoTie = ~uint64_t{0};

std::vector<uint32_t> read_sample(const ReadElements& read, const Sample& sample) {
  std::vector<uint32_t> magnitudes;
  magnitudes.reserve(sample.size());
  for (size_t piece = 0; piece < sample.pieces; ++piece) {
    const float* values = read(sample.begin(piece), sample.length);
    for (size_t i = 0; i < sample.length; ++i) magnitudes.push_back(magnitude_bits(values[i]));
  }
  return magnitudes;
}

/// The `rank`-th largest, from 0: counts in equal intervals, and then searches one of these.
uint32_t largest(std::span<const uint32_t> magnitudes, size_t rank) {
  constexpr int kIntervalBits = 11;
  const auto [least, most] = std::ranges::minmax(magnitudes);
  const int shift = std::max(static_cast<int>(std::bit_width(most - least)) - kIntervalBits, 0);
  std::array<size_t, size_t{1} << kIntervalBits> sizes{};
  for (const uint32_t magnitude : magnitudes) ++sizes[(magnitude - least) >> shift];
  uint32_t interval = (most - least) >> shift;
  while (rank >= sizes[interval]) rank -= sizes[interval--];
  std::vector<uint32_t> inside;
  inside.reserve(sizes[interval]);
  for (const uint32_t magnitude : magnitudes) {
    if ((magnitude - least) >> shift == interval) inside.push_back(magnitude);
  }
  const auto at = inside.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(inside.begin(), at, inside.end(), std::greater<>());
  return *at;
}

/// The k-th largest magnitude, and how many elements of it are not among the k largest (surplus) or
/// are (ties).
struct Boundary {
  uint32_t magnitude = 0;
  size_t surplus = 0;
  size_t ties = 0;
};

/// Two magnitudes between which the k-th largest is, almost certainly.
struct Bounds {
  uint32_t low = 1;
  uint32_t high = kInfinityBits;
  double reach = 0;  ///< the share of elements by which the rank may be wrong, in both directions
};

/// The variance of the number of sampled elements that are at least `least`. Large elements
/// cluster: then the pieces of neighbours differ far more than random elements, and few of them
/// show a cluster. (Cochran, "Sampling techniques", 1977: clusters of equal size.)
double variance_of_larger(std::span<const uint32_t> sampled, uint32_t least) {
  double sum = 0;
  double squares = 0;
  double pieces = 0;
  for (size_t begin = 0; begin < sampled.size(); begin += Sample::kPiece, ++pieces) {
    const auto piece = sampled.subspan(begin, std::min(Sample::kPiece, sampled.size() - begin));
    const auto larger = static_cast<double>(
        std::ranges::count_if(piece, [least](uint32_t each) { return each >= least; }));
    sum += larger;
    squares += larger * larger;
  }
  return squares - sum * sum / pieces;
}

Bounds bounds_by_sample(const ReadElements& read, size_t count, double ratio, uint64_t key) {
  const std::vector<uint32_t> sampled = read_sample(read, sample_of(count, key));
  const double size = static_cast<double>(sampled.size());
  const uint32_t estimate =
      largest(sampled, std::min(static_cast<size_t>(ratio * size), sampled.size() - 1));
  // Four standard deviations. The elements of a piece tell as much as at least a quarter of that
  // number at random positions.
  const double slack = 4 * std::sqrt(std::max(4 * size * ratio * (1 - ratio),
                                              variance_of_larger(sampled, estimate))) +
                       8;
  const double upper_rank = ratio * size - slack;
  const double lower_rank = ratio * size + slack;
  Bounds bounds{.reach = slack / size};
  if (lower_rank < size) {
    bounds.low = std::max(largest(sampled, static_cast<size_t>(lower_rank)), 1u);
  }
  if (upper_rank >= 0) bounds.high = largest(sampled, static_cast<size_t>(upper_rank));
  return bounds;
}

/// The k-th largest, if `above` magnitudes are above the bounds; nothing if it is not among
/// `between`.
std::optional<Boundary> boundary_between(const Bounds& bounds, size_t k, size_t above,
                                         std::span<const uint32_t> between) {
  if (above >= k) return std::nullopt;
  if (above + between.size() < k) {
    if (bounds.low > 1) return std::nullopt;
    return Boundary{};
  }
  const size_t wanted = k - above;
  const uint32_t magnitude = largest(between, wanted - 1);
  size_t larger = 0;
  size_t equal = 0;
  for (const uint32_t each : between) {
    larger += each > magnitude ? 1 : 0;
    equal += each == magnitude ? 1 : 0;
  }
  return Boundary{magnitude, larger + equal - wanted, wanted - larger};
}

/// Keeps only the elements between the bounds, for selections of many elements.
std::optional<Boundary> boundary_near_sample(const ReadElements& read, size_t count, size_t k,
                                             const Bounds& bounds) {
  const SparseKernels& kernels = dispatched_sparse_kernels();
  std::array<uint64_t, kLargestRead / 64> mask{};
  std::array<uint64_t, kLargestRead / 64> between{};
  const size_t most = count / 4;
  const auto expected = static_cast<size_t>(2 * bounds.reach * static_cast<double>(count));
  std::vector<float> kept(std::min(expected, most) + kLargestRead);
  size_t kept_count = 0;
  size_t above = 0;
  for (size_t begin = 0; begin < count; begin += kLargestRead) {
    const size_t length = std::min(kLargestRead, count - begin);
    const float* values = read(begin, length);
    above += kernels.mark(values, length, bounds.high, 0, mask.data());
    kernels.mark(values, length, bounds.low, length, between.data());
    for (size_t word = 0; word < mask_words(length); ++word) between[word] &= ~mask[word];
    if (kept.size() - kept_count < length) kept.resize(2 * kept.size());
    kept_count += kernels.compact(values, between.data(), length, kept.data() + kept_count);
    if (above >= k || kept_count > most) return std::nullopt;
  }
  std::vector<uint32_t> magnitudes(kept_count);
  for (size_t i = 0; i < kept_count; ++i) magnitudes[i] = magnitude_bits(kept[i]);
  return boundary_between(bounds, k, above, magnitudes);
}

/// Gathers all elements from the lower bound on, and keeps those that are sent.
std::optional<Selection> gather(const ReadElements& read, size_t count, size_t k,
                                const Bounds& bounds) {
  const double share = static_cast<double>(k) / static_cast<double>(count) + bounds.reach;
  const auto expected = static_cast<size_t>(share * static_cast<double>(count));
  auto gathered = std::make_shared<GatheredElements>(count, expected);
  for (size_t begin = 0; begin < count; begin += kLargestRead) {
    const size_t length = std::min(kLargestRead, count - begin);
    gathered->add(read(begin, length), length, bounds.low);
    if (gathered->values().size() > count / 4) return std::nullopt;
  }
  const std::span<const float> values = gathered->values();
  Recycled<uint32_t> between(values.size());
  size_t between_count = 0;
  for (const float value : values) {
    between[between_count] = magnitude_bits(value);
    between_count += between[between_count] <= bounds.high ? 1 : 0;
  }
  const size_t above = values.size() - between_count;
  const std::optional<Boundary> boundary =
      boundary_between(bounds, k, above, {between.data(), between_count});
  if (!boundary) return std::nullopt;
  Selection selection = {std::clamp(boundary->magnitude, 1u, kInfinityBits), kNoTie};
  if (boundary->surplus > 0 && boundary->magnitude < kInfinityBits) {
    selection.last_tie = gathered->keep(selection.least, boundary->ties);
  } else {
    gathered->keep(selection.least - 1, 0);
  }
  selection.gathered = std::move(gathered);
  return selection;
}

Boundary boundary_by_radix(const ReadElements& read, size_t count, size_t k) {
  Boundary boundary;
  boundary.ties = k;
  uint32_t prefix = 0;  // bits of the k-th largest above the shift of the previous pass
  int prefix_shift = kMagnitudeBits;
  for (const int shift : kRadixShifts) {
    std::array<size_t, kRadixBuckets> sizes{};
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

/// The index of the `ties`-th element with this magnitude.
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

uint32_t threshold_bits(double value) {
  return std::clamp(magnitude_bits(static_cast<float>(value)), 1u, kInfinityBits);
}

Selection select_largest(const ReadElements& read, size_t count, size_t k, uint64_t key) {
  if (k >= count) return {1, kNoTie};
  std::optional<Boundary> boundary;
  if (count >= kLeastToSample) {
    const double ratio = static_cast<double>(k) / static_cast<double>(count);
    const Bounds bounds = bounds_by_sample(read, count, ratio, key);
    if (ratio + bounds.reach <= kMostGathered) {
      if (std::optional<Selection> selection = gather(read, count, k, bounds)) return *selection;
    } else {
      boundary = boundary_near_sample(read, count, k, bounds);
    }
  }
  if (!boundary) boundary = boundary_by_radix(read, count, k);
  if (boundary->magnitude == 0) return {1, kNoTie};
  if (boundary->magnitude >= kInfinityBits) return {kInfinityBits, kNoTie};
  if (boundary->surplus == 0) return {boundary->magnitude, kNoTie};
  return {boundary->magnitude, find_tie(read, count, boundary->magnitude, boundary->ties)};
}

Selection select_sampled(const ReadElements& read, size_t count, double ratio, uint64_t key) {
  if (count == 0) return {1, kNoTie};
  const std::vector<uint32_t> sampled = read_sample(read, sample_of(count, key));
  const size_t rank = selected_count(ratio, sampled.size());
  return {std::clamp(largest(sampled, rank - 1), 1u, kInfinityBits), kNoTie};
}

Selection select_threshold(double value) {
  return {threshold_bits(value), kNoTie};
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
  selection.gathered = nullptr;  // it would contain norms
  return selection;
}

std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                    const Selection& selection, size_t granule) {
  std::vector<int32_t> counts((count + granule - 1) / granule);
  if (selection.gathered != nullptr) {
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] = static_cast<int32_t>(
          selection.gathered->count_between(i * granule, std::min(count, (i + 1) * granule)));
    }
    return counts;
  }
  const SparseKernels& kernels = dispatched_sparse_kernels();
  std::array<uint64_t, kLargestRead / 64> mask{};
  const size_t step = std::min(granule, kLargestRead);
  for (size_t begin = 0; begin < count; begin += step) {
    const size_t length = std::min(step, count - begin);
    const size_t ties = ties_among(selection, begin, length);
    counts[begin / granule] += static_cast<int32_t>(
        kernels.mark(read(begin, length), length, selection.least, ties, mask.data()));
  }
  return counts;
}

}  // namespace q7x2
