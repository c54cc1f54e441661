// The select stage for every processor of the architecture.
#include "kernels/codec/sparse_kernels.h"

#define Q7X2_SPARSE_KERNELS kSparseKernelsBaseline
#define Q7X2_ISA_NAME "baseline"
#include "kernels/codec/sparse_impl.h"
