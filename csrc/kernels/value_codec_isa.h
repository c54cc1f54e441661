// The entry points of the value stage, one pair for each instruction set.
#pragma once

#include "kernels/value_codec.h"

namespace q7x2 {

EncodeValues encode_values_baseline;
DecodeValues decode_values_baseline;
#if defined(__x86_64__)
EncodeValues encode_values_avx2;
DecodeValues decode_values_avx2;
EncodeValues encode_values_avx512;
DecodeValues decode_values_avx512;
#endif

}  // namespace q7x2
