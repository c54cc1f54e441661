// The entry points of the reduction kernels, one per instruction set.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace q7x2 {

/// Like `reduce`, for arguments that `check_reducible` accepts, but a single source is not simply
/// copied: it is divided by the divisor.
using ReduceKernel = void(void* dst, const void* const* sources, size_t source_count, size_t count,
                          DType dtype, ReduceKind kind, int divisor);

ReduceKernel reduce_baseline;
#if defined(__x86_64__)
ReduceKernel reduce_avx2;
ReduceKernel reduce_avx512;
#endif

}  // namespace q7x2
