// Between fp32 and the other types of floats, element by element.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace q7x2 {

/// True for floats of 64, 32, 16 and 8 bits.
bool is_float(DType dtype);

/// Exact but for fp64, which is rounded to nearest even. Throws Error(kInvalidArgument) where
/// `dtype` is no float.
void widen(float* out, const void* in, size_t count, DType dtype);

/// Rounds to nearest even. Throws as `widen`.
void narrow(void* out, const float* in, size_t count, DType dtype);

}  // namespace q7x2
