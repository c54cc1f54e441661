// The select stage for x86 with AVX2.
#include "kernels/codec/sparse_kernels.h"

#if defined(__x86_64__)
#define Q7X2_SPARSE_KERNELS kSparseKernelsAvx2
#define Q7X2_ISA_NAME "avx2"
#include "kernels/codec/sparse_impl.h"
#endif
