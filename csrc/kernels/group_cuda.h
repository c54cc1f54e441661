// What the threads of a CUDA block do together with one group: its statistics and its rotation.
//
// Included by codec_cuda.cu only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/random.h"
#include "kernels/value_codec.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

struct Buffer {
  float sums[kLargestGroup];
  float rotated[kLargestGroup];
  float units[kLargestGroup];
  uint8_t codes[kLargestGroup];
  float lanes[kLanes];
  unsigned largest;
  int least;
  int most;
};

/// Calls `body` with 0 ... count - 1, shared out among the threads, which then wait for each other.
template <class Body>
__device__ void for_each(size_t count, Body body) {
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) body(i);
  __syncthreads();
}

__device__ unsigned largest_magnitude(const float* values, size_t count, Buffer& buffer) {
  for_each(1, [&](size_t) { buffer.largest = 0; });
  for_each(count, [&](size_t i) { atomicMax(&buffer.largest, magnitude_bits(values[i])); });
  return buffer.largest;
}

template <class Term>
__device__ float sum_of(size_t count, Buffer& buffer, Term term) {
  for_each(kLanes, [&](size_t lane) {
    float sum = 0;
    for (size_t i = lane; i < count; i += kLanes) sum += term(i);
    buffer.lanes[lane] = sum;
  });
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for_each(half, [&](size_t i) { buffer.lanes[i] += buffer.lanes[i + half]; });
  }
  const float sum = buffer.lanes[0];
  __syncthreads();
  return sum;
}

__device__ Scale scale_of(const ValueSpec& spec, const float* values, size_t count, size_t padded,
                          unsigned largest_bits, bool stochastic, Buffer& buffer) {
  const float largest = float_from_bits(largest_bits);
  if (spec.minmax) {
    for_each(1, [&](size_t) { buffer.least = buffer.most = ordered(values[0]); });
    for_each(count, [&](size_t i) {
      atomicMin(&buffer.least, ordered(values[i]));
      atomicMax(&buffer.most, ordered(values[i]));
    });
    return scale_between(from_ordered(buffer.least), from_ordered(buffer.most), spec.bits);
  }
  const float inverse = scale_to(largest, 1).inverse;
  const float most = largest_unit(spec);
  const auto square = [&](size_t i) {
    const float part = values[i] * inverse;
    return part * part;
  };
  switch (spec.kind) {
    case ValueKind::kOneBit: {
      const auto magnitude = [&](size_t i) {
        return float_from_bits(magnitude_bits(values[i])) * kSumScale;
      };
      return scale_to_mean(sum_of(padded, buffer, magnitude), static_cast<int>(count));
    }
    case ValueKind::kQsgd:
      return scale_to_norm(largest, sum_of(padded, buffer, square), most);
    case ValueKind::kSign:
      return {1, 1, 0};
    case ValueKind::kUniform:
      if (spec.hadamard && !stochastic) {
        return scale_to_clip(largest, sum_of(padded, buffer, square), static_cast<int>(count),
                             spec.bits, most);
      }
      return scale_to(largest, most);
    default:
      return scale_to(largest, most);
  }
}

__device__ void walsh_hadamard(float* values, size_t count) {
  for (size_t stride = count / 2; stride > 0; stride /= 2) {
    for_each(count / 2, [&](size_t pair) {
      const size_t i = pair / stride * 2 * stride + pair % stride;
      const float a = values[i];
      const float b = values[i + stride];
      values[i] = a + b;
      values[i + stride] = a - b;
    });
  }
}

__device__ void scale_signs(float* group, size_t begin, size_t count, RandomStream signs,
                            float scale) {
  for_each(count, [&](size_t offset) {
    const size_t i = begin + offset;
    const uint32_t sign = group_sign(signs, static_cast<uint32_t>(i));
    group[i] = float_from_bits(float_to_bits(group[i] * scale) ^ sign);
  });
}

template <class Visit>
__device__ void for_each_piece(size_t count, Visit visit) {
  size_t piece = kLargestGroup;
  for (size_t begin = 0; begin < count; begin += piece) {
    while (piece > count - begin) piece /= 2;
    visit(begin, piece);
  }
}

__device__ void rotate(float* values, size_t count, RandomStream signs) {
  for_each_piece(count, [&](size_t begin, size_t piece) {
    scale_signs(values, begin, piece, signs, scale_into_rotation(piece));
    walsh_hadamard(values + begin, piece);
  });
}

__device__ void rotate_back(float* values, size_t count, RandomStream signs, float step) {
  for_each_piece(count, [&](size_t begin, size_t piece) {
    walsh_hadamard(values + begin, piece);
    scale_signs(values, begin, piece, signs, scale_out_of_rotation(piece) * step);
  });
}

}  // namespace
}  // namespace q7x2
