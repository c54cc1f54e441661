// Integers that add: numbers under a scale that all ranks share become small integers, the sum of
// which over all ranks is exact and fits, so that any Plan may add them.
//
// A group of elements has the largest magnitude m of all ranks (agreed on beforehand, by a
// maximum), and levels = (2^(bits-1) - 1) / ranks steps to each side of zero: the sum of `ranks`
// integers then needs no more than `bits` bits. A number x becomes round(x / step).
//   bits      step                                          error of a sum of n ranks at most
//   8, 16     m / levels                                    n step / 2 an element
//   32        the least power of two that is not less       n step / 2, and the rounding of the sum
// So with 32 bits each group is a block of floating-point numbers with a common exponent, and
// numbers that are multiples of its step lose nothing. It is unbiased with `stochastic`.
//   bytes     bits / 8 an element, and 4 for a group's maximum
// Mishchenko et al., "IntSGD: adaptive floatless compression of stochastic gradients", 2022; Sapio
// et al., "Scaling distributed machine learning with in-network aggregation", 2021.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

struct SumIntBlock {
  const float* values = nullptr;
  float* errors = nullptr;  ///< added, and kept; may be null
  size_t count = 0;
  uint64_t rounding_key = 0;
};

/// Steps to each side of zero. Throws Error(kInvalidArgument) where so many ranks leave none.
int sum_int_levels(const ValueSpec& spec, int ranks);

/// The largest magnitude of each group; NaN where something is not finite.
void group_maxima(const ValueSpec& spec, const SumIntBlock& block, float* maxima);

/// `codes`: int8_t, int16_t or int32_t, as the spec's bits say.
void encode_sum_int(const ValueSpec& spec, int levels, const SumIntBlock& block,
                    const float* maxima, void* codes);

/// `out[i]` = the sum's value / divisor. Groups whose maximum is not finite become NaN.
void decode_sum_int(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                    int divisor, float* out, size_t count);

}  // namespace q7x2
