// PowerSGD's passes, compiled for each instruction set.
#pragma once

#include "kernels/low_rank.h"

namespace q7x2 {

extern const LowRankKernels kLowRankKernelsBaseline;
#if defined(__x86_64__)
extern const LowRankKernels kLowRankKernelsAvx2;
extern const LowRankKernels kLowRankKernelsAvx512;
#endif

}  // namespace q7x2
