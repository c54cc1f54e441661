// Integers that add: numbers become small integers with a scale that all ranks share. The sum of
// these integers over all ranks is exact and does not overflow, so any Plan may add them.
//
// A group of elements has the largest magnitude m of all ranks (agreed on beforehand, by a
// maximum), and levels = (2^(bits-1) - 1) / ranks steps on each side of zero: the sum of `ranks`
// integers then needs at most `bits` bits. A number x becomes round(x / step).
//   bits      step                                       maximum error of a sum of n ranks
//   8, 16     m / levels                                 n step / 2 per element
//   32        the least power of two that is not less    n step / 2, and the rounding of the sum
// So with 32 bits each group is a block of floating-point numbers with a common exponent, and
// numbers that are multiples of its step are exact. It is unbiased with `stochastic`.
//   bytes     bits / 8 per element, and 4 per group for its maximum
// Mishchenko et al., "IntSGD: adaptive floatless compression of stochastic gradients", 2022; Sapio
// et al., "Scaling distributed machine learning with in-network aggregation", 2021.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

struct SumIntBlock {
  const float* values = nullptr;
  /// added to the values, then overwritten with the new errors; may be null
  float* errors = nullptr;
  size_t count = 0;
  uint64_t rounding_key = 0;
};

/// Number of steps on each side of zero. Throws Error(kInvalidArgument) if it is zero for this many
/// ranks.
int sum_int_levels(const ValueSpec& spec, int ranks);

/// The largest magnitude of each group; NaN if a number is not finite.
void group_maxima(const ValueSpec& spec, const SumIntBlock& block, float* maxima);

/// `codes`: int8_t, int16_t or int32_t, depending on the spec's bits.
void encode_sum_int(const ValueSpec& spec, int levels, const SumIntBlock& block,
                    const float* maxima, void* codes);

/// `out[i]` = value of the sum / divisor. Groups whose maximum is not finite become NaN.
void decode_sum_int(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                    int divisor, float* out, size_t count);

}  // namespace q7x2
