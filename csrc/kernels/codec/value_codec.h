// The value stage: converts fp32 numbers to codes of a few bits, group by group, and back.
//
// The body of a message of `count` numbers is
//
//   scales   per group: an fp32 (minmax: two, the step and the least), little endian
//   codes    all numbers, packed (kernels/codec/pack.h)
//
// So its length follows from `count`, and a decoder that is given that many bytes never reads
// beyond them, whatever they contain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

/// A block that is written to a body; see EncodeArguments.
struct ValueBlock {
  const float* values = nullptr;
  size_t count = 0;
  uint64_t first = 0;
  const float* add = nullptr;
  float* error = nullptr;
  float error_scale = 1;
  uint64_t shared_key = 0;
  uint64_t rounding_key = 0;
};

/// For every kind except kSumInt.
using EncodeValues = void(const ValueSpec& spec, const ValueBlock& block, std::byte* body);
/// `add`: adds to the contents of `out`.
using DecodeValues = void(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                          uint64_t first, uint64_t shared_key, bool add);

struct ValueKernels {
  const char* isa;
  EncodeValues* encode;
  DecodeValues* decode;
};

/// The kernels that this processor can run, the best first.
std::span<const ValueKernels> value_kernels();
/// The kernels of this process: those that Q7X2_ISA names, or the best.
const ValueKernels& dispatched_value_kernels();

size_t value_bytes(const ValueSpec& spec, size_t count);

// The entry points, one pair per instruction set.
EncodeValues encode_values_baseline;
DecodeValues decode_values_baseline;
#if defined(__x86_64__)
EncodeValues encode_values_avx2;
DecodeValues decode_values_avx2;
EncodeValues encode_values_avx512;
DecodeValues decode_values_avx512;
#endif

}  // namespace q7x2
