// The select stage for x86 with AVX-512 (F, BW, VL and DQ).
#include "kernels/codec/sparse_kernels.h"

#if defined(__x86_64__)
#define Q7X2_SPARSE_KERNELS kSparseKernelsAvx512
#define Q7X2_ISA_NAME "avx512"
#include "kernels/codec/sparse_impl.h"
#endif
