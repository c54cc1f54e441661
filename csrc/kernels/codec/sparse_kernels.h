// The loops of the select stage, for each instruction set: bit masks over elements, and numbers
// that are compacted and expanded by them.
//
// Bit i % 64 of word i / 64 of a mask belongs to element i; bits behind the last element are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace q7x2 {

enum class Expand : uint8_t {
  kSet,     ///< elements that have no bit become zero
  kStream,  ///< the same, past the caches where it can: for results that are longer than they are
  kKeep,    ///< they stay
  kAdd,     ///< they stay, and the others are added to what is there
};

inline size_t mask_words(size_t count) {
  return (count + 63) / 64;
}

/// No pointer may be null but `add` of `sum`; no memory may overlap but `out` of `sum`, which may
/// be one of its inputs.
struct SparseKernels {
  const char* isa;
  /// out[i] = (values[i] + add[i]) * scale
  void (*sum)(const float* values, const float* add, float scale, size_t count, float* out);
  /// Magnitudes of more than `least`, and the equal ones among the first `ties` elements. Returns
  /// how many.
  size_t (*mark)(const float* values, size_t count, uint32_t least, size_t ties, uint64_t* mask);
  /// Magnitudes of `least` and more, and their values one behind another in one pass. May write
  /// anything to the rest of out[0 ... count). Returns how many.
  size_t (*sift)(const float* values, size_t count, uint32_t least, uint64_t* mask, float* out);
  /// Elements whose random number is below `limit`. Returns how many.
  size_t (*mark_random)(uint64_t key, uint64_t first, size_t count, uint64_t limit, uint64_t* mask);
  /// The `n` largest of each `m`, a power of two up to 32; the first group has `head` elements.
  /// Returns how many.
  size_t (*mark_largest)(const float* values, size_t count, size_t head, int n, int m,
                         uint64_t* mask);
  /// The L2 norm, in fp32; sums run in fp64, so that squares neither overflow nor vanish.
  float (*norm)(const float* values, size_t count);
  /// Writes the values whose bits are set, one behind another, and may write anything to the rest
  /// of out[0 ... count). Returns how many.
  size_t (*compact)(const float* values, const uint64_t* mask, size_t count, float* out);
  /// The way back: reads one of `values` for each bit. Returns how many.
  size_t (*expand)(const float* values, const uint64_t* mask, size_t count, Expand how, float* out);
};

/// Those that this processor runs, the best first.
std::span<const SparseKernels* const> sparse_kernels();
/// The choice of this process: Q7X2_ISA, or the best.
const SparseKernels& dispatched_sparse_kernels();

// One for each instruction set.
extern const SparseKernels kSparseKernelsBaseline;
#if defined(__x86_64__)
extern const SparseKernels kSparseKernelsAvx2;
extern const SparseKernels kSparseKernelsAvx512;
#endif

}  // namespace q7x2
