// PowerSGD's passes for any processor that the compiler knows.
#include "kernels/cpu/low_rank.h"

#define Q7X2_LOW_RANK_KERNELS kLowRankKernelsBaseline
#define Q7X2_ISA_NAME "baseline"
#include "kernels/cpu/low_rank_impl.h"
