// Conversion between fp32 and the other float types, element by element.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace q7x2 {

/// True for floats of 64, 32, 16 and 8 bits.
bool is_float(DType dtype);

/// Exact except for fp64, which is rounded to nearest even. Throws Error(kInvalidArgument) if
/// `dtype` is not a float.
void widen(float* out, const void* in, size_t count, DType dtype);

/// Rounds to nearest even. Throws the errors of `widen`.
void narrow(void* out, const float* in, size_t count, DType dtype);

}  // namespace q7x2
