// PowerSGD's passes for every processor of the architecture.
#include "kernels/cpu/low_rank.h"

#define Q7X2_LOW_RANK_KERNELS kLowRankKernelsBaseline
#define Q7X2_ISA_NAME "baseline"
#include "kernels/cpu/low_rank_impl.h"
