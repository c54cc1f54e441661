// Whether numbers in memory are all zeros.
#pragma once

#include <cstddef>

namespace q7x2 {

/// Whether all of `count` floating-point numbers of `size` bytes (2, 4 or 8) are 0 or -0. NaN is
/// not zero. Stops at the first other number.
bool is_zero(const void* numbers, size_t count, size_t size);

}  // namespace q7x2
