// The reduction kernels for x86 with AVX2, FMA and F16C.
#include "kernels/cpu/reduce_kernels.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c -mfma"
#endif
#define Q7X2_REDUCE_KERNEL reduce_avx2
#include "kernels/cpu/reduce_impl.h"
#endif
