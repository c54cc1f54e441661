// Finds rows of zeros.
#pragma once

#include <cstddef>

namespace q7x2 {

/// Whether all bits are zero. A negative zero does not count as zero.
bool is_zero_bits(const void* data, size_t bytes);

}  // namespace q7x2
