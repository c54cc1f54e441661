// Finds rows of zeros.
#pragma once

#include <cstddef>

namespace q7x2 {

/// Whether all bits are zero: a negative zero is not.
bool is_zero_bits(const void* data, size_t bytes);

}  // namespace q7x2
