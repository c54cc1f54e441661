// The value stage for every processor of the architecture.
#define Q7X2_ENCODE_VALUES encode_values_baseline
#define Q7X2_DECODE_VALUES decode_values_baseline
#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_codec_impl.h"
