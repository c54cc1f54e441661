// PowerSGD's passes for x86 with AVX-512 (F, BW, VL and DQ).
#include "kernels/cpu/low_rank.h"

#if defined(__x86_64__)
#define Q7X2_LOW_RANK_KERNELS kLowRankKernelsAvx512
#define Q7X2_ISA_NAME "avx512"
#include "kernels/cpu/low_rank_impl.h"
#endif
