// The reduction kernels for x86 with AVX-512 (F, BW, VL and DQ).
#include "kernels/cpu/reduce_kernels.h"

#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || \
    !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif
#define Q7X2_REDUCE_KERNEL reduce_avx512
#include "kernels/cpu/reduce_impl.h"
#endif
