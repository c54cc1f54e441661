// Element-wise reduction of several operands into one, in a fixed order.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace q7x2 {

/// dst[i] = scale(sources[0][i] (op) sources[1][i] (op) ... ), for i in [0, count).
///
/// The fold goes from left to right in the order of `sources` on every processor, so that equal
/// inputs give equal bits on every rank. Floats of 16 and 8 bits are folded in fp32 and rounded
/// once (to nearest even); other types are folded in their own type, integers modulo 2^bits. Bools:
/// sum, max and bit-or are "or", product, min and bit-and are "and", bit-xor is "xor".
/// Min and max propagate NaN.
///
/// `divisor` other than 1 divides each result before it is rounded: the mean of a sum (integers
/// truncate toward zero). `dst` may be one of the sources; other overlaps are not allowed.
/// `sources.size()` >= 1.
///
/// Throws Error(kInvalidArgument) for combinations without a meaning: bit operations on floats, min
/// or max of complex numbers, any operation on kBytes, a divisor for bools.
void reduce(void* dst, std::span<const void* const> sources, size_t count, DType dtype,
            ReduceKind kind, int divisor = 1);

/// Throws the same error as `reduce` without touching memory.
void check_reducible(DType dtype, ReduceKind kind, int divisor = 1);

/// The instruction set to which `reduce` was dispatched: "avx512", "avx2" or "baseline".
const char* reduce_isa();

}  // namespace q7x2
