// The reduction kernels for every processor of the architecture.
#include "kernels/cpu/reduce_kernels.h"

#define Q7X2_REDUCE_KERNEL reduce_baseline
#include "kernels/cpu/reduce_impl.h"
