// PowerSGD's passes for any processor that the compiler knows.
#include "kernels/low_rank_isa.h"

#define Q7X2_LOW_RANK_KERNELS kLowRankKernelsBaseline
#define Q7X2_ISA_NAME "baseline"
#include "kernels/low_rank_impl.h"
