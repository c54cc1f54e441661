// PowerSGD's passes for x86 with AVX2 and FMA.
#include "kernels/cpu/low_rank.h"

#if defined(__x86_64__)
#define Q7X2_LOW_RANK_KERNELS kLowRankKernelsAvx2
#define Q7X2_ISA_NAME "avx2"
#include "kernels/cpu/low_rank_impl.h"
#endif
