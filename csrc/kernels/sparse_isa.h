// The select stage's loops, compiled for each instruction set.
#pragma once

#include "kernels/sparse_kernels.h"

namespace q7x2 {

extern const SparseKernels kSparseKernelsBaseline;
#if defined(__x86_64__)
extern const SparseKernels kSparseKernelsAvx2;
extern const SparseKernels kSparseKernelsAvx512;
#endif

}  // namespace q7x2
