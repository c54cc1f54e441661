// The value stage for x86 with AVX-512 (F, BW, VL and DQ).
#include "kernels/codec/value_codec.h"

#if defined(__x86_64__)
#define Q7X2_ENCODE_VALUES encode_values_avx512
#define Q7X2_DECODE_VALUES decode_values_avx512
#include "kernels/codec/value_codec_impl.h"
#endif
