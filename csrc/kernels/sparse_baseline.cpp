// The select stage for any processor that the compiler knows.
#include "kernels/sparse_isa.h"

#define Q7X2_SPARSE_KERNELS kSparseKernelsBaseline
#define Q7X2_ISA_NAME "baseline"
#include "kernels/sparse_impl.h"
