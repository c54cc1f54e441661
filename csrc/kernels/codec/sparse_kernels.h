// The loops of the select stage, per instruction set: bit masks over elements, and the compaction
// and expansion of numbers.
//
// Bit i % 64 of word i / 64 of a mask belongs to element i; bits after the last element are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace q7x2 {

enum class Expand : uint8_t {
  kSet,     ///< elements that have no bit become zero
  kStream,  ///< the same, bypassing the caches if it can: for results that are longer than these
  kKeep,    ///< elements that have no bit do not change
  kAdd,     ///< the same, and the numbers are added to the other elements
};

inline size_t mask_words(size_t count) {
  return (count + 63) / 64;
}

/// Pointers must not be null, except `add` of `sum`. Memory must not overlap, except that `out` of
/// `sum` may be one of its inputs.
struct SparseKernels {
  const char* isa;
  /// out[i] = (values[i] + add[i]) * scale
  void (*sum)(const float* values, const float* add, float scale, size_t count, float* out);
  /// Marks magnitudes above `least`, and the equal ones among the first `ties` elements. Returns
  /// how many.
  size_t (*mark)(const float* values, size_t count, uint32_t least, size_t ties, uint64_t* mask);
  /// Marks magnitudes of at least `least`, and writes their values to a dense array in the same
  /// pass. May write anything to the rest of out[0 ... count). Returns how many.
  size_t (*sift)(const float* values, size_t count, uint32_t least, uint64_t* mask, float* out);
  /// Marks elements whose random number is below `limit`. Returns how many.
  size_t (*mark_random)(uint64_t key, uint64_t first, size_t count, uint64_t limit, uint64_t* mask);
  /// Marks the `n` largest of each `m`, a power of two up to 32; the first group has `head`
  /// elements. Returns how many.
  size_t (*mark_largest)(const float* values, size_t count, size_t head, int n, int m,
                         uint64_t* mask);
  /// The L2 norm, in fp32; sums are computed in fp64, so that squares neither overflow nor vanish.
  float (*norm)(const float* values, size_t count);
  /// Writes the values whose bits are set to a dense array, and may write anything to the rest of
  /// out[0 ... count). Returns how many.
  size_t (*compact)(const float* values, const uint64_t* mask, size_t count, float* out);
  /// The inverse: reads one of `values` for each bit. Returns how many.
  size_t (*expand)(const float* values, const uint64_t* mask, size_t count, Expand how, float* out);
};

/// The kernels that this processor can run, the best first.
std::span<const SparseKernels* const> sparse_kernels();
/// The kernels of this process: those that Q7X2_ISA names, or the best.
const SparseKernels& dispatched_sparse_kernels();

// One per instruction set.
extern const SparseKernels kSparseKernelsBaseline;
#if defined(__x86_64__)
extern const SparseKernels kSparseKernelsAvx2;
extern const SparseKernels kSparseKernelsAvx512;
#endif

}  // namespace q7x2
