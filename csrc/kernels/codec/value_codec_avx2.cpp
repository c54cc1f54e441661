// The value stage for x86 with AVX2, FMA and F16C.
#include "kernels/codec/value_codec.h"

#if defined(__x86_64__)
#define Q7X2_ENCODE_VALUES encode_values_avx2
#define Q7X2_DECODE_VALUES decode_values_avx2
#include "kernels/codec/value_codec_impl.h"
#endif
