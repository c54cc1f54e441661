// Casts of values to shorter floats on a GPU: each thread casts four neighbours at a time.
//
// Included by the CUDA sources only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_kinds.h"
#include "kernels/cuda/groups_cuda.h"
#include "kernels/cuda/memory_cuda.h"

namespace q7x2 {
namespace {

/// Calls `four` with the first of every four numbers, and `one` with each remaining number.
template <class FourOf, class One>
__device__ void for_each_four(size_t count, FourOf four, One one) {
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  const size_t thread = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t fours = count / 4;
  for (size_t i = thread; i < fours; i += threads) four(4 * i);
  for (size_t i = 4 * fours + thread; i < count; i += threads) one(i);
}

/// Code `i` of a body that may begin at any byte.
template <class T>
__device__ T code_at(const uint8_t* body, size_t i) {
  using Bits = typename T::Bits;
  uint32_t bits = 0;
  for (size_t byte = 0; byte < sizeof(Bits); ++byte) {
    bits |= static_cast<uint32_t>(body[i * sizeof(Bits) + byte]) << (8 * byte);
  }
  return {static_cast<Bits>(bits)};
}
template <class T>
__device__ void set_code_at(uint8_t* body, size_t i, T code) {
  for (size_t byte = 0; byte < sizeof(code.bits); ++byte) {
    body[i * sizeof(code.bits) + byte] = static_cast<uint8_t>(code.bits >> (8 * byte));
  }
}

template <class T>
__device__ Four<T> four_codes_at(const uint8_t* body, size_t i) {
  const uint8_t* at = body + i * sizeof(T);
  if (is_aligned(at, sizeof(Four<T>))) return *reinterpret_cast<const Four<T>*>(at);
  return {{code_at<T>(body, i), code_at<T>(body, i + 1), code_at<T>(body, i + 2),
           code_at<T>(body, i + 3)}};
}
template <class T>
__device__ void set_four_codes_at(uint8_t* body, size_t i, Four<T> codes) {
  uint8_t* at = body + i * sizeof(T);
  if (is_aligned(at, sizeof(Four<T>))) {
    *reinterpret_cast<Four<T>*>(at) = codes;
    return;
  }
  for (size_t k = 0; k < 4; ++k) set_code_at(body, i + k, codes.of[k]);
}

/// The code of `sum`. Its error is stored in `error`, which does not change if the error is not
/// finite.
template <class T>
__device__ T cast_sum(float sum, float scale, float& error) {
  const T code = from_float<T>(sum);
  const float lost = (sum - to_float(code)) * scale;
  if (is_finite(lost)) error = lost;
  return code;
}

/// Encodes the numbers of `four_of` and `one_of`; `block` says where the error is stored.
template <class T, class FourOf, class OneOf>
__device__ void encode_casts_of(const ValueBlock& block, uint8_t* body, FourOf four_of,
                                OneOf one_of) {
  for_each_four(
      block.count,
      [&](size_t i) {
        const Four<float> sums = four_of(i);
        Four<float> error = {};
        if (block.error != nullptr) error = load_four(block.error + i);
        Four<T> codes;
        for (int k = 0; k < 4; ++k) {
          codes.of[k] = cast_sum<T>(sums.of[k], block.error_scale, error.of[k]);
        }
        set_four_codes_at(body, i, codes);
        if (block.error != nullptr) store_four(block.error + i, error);
      },
      [&](size_t i) {
        const float sum = one_of(i);
        float error = block.error == nullptr ? 0 : block.error[i];
        set_code_at(body, i, cast_sum<T>(sum, block.error_scale, error));
        if (block.error != nullptr) block.error[i] = error;
      });
}

template <class T>
__global__ void __launch_bounds__(kThreads) encode_casts(ValueBlock block, uint8_t* body) {
  encode_casts_of<T>(
      block, body,
      [&](size_t i) {
        Four<float> sums = load_four(block.values + i);
        if (block.add != nullptr) {
          const Four<float> add = load_four(block.add + i);
          for (int k = 0; k < 4; ++k) sums.of[k] += add.of[k];
        }
        return sums;
      },
      [&](size_t i) {
        return block.add == nullptr ? block.values[i] : block.values[i] + block.add[i];
      });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    decode_casts(const uint8_t* body, float* out, size_t count, bool add) {
  for_each_four(
      count,
      [&](size_t i) {
        const Four<T> codes = four_codes_at<T>(body, i);
        Four<float> values = {};
        if (add) values = load_four(out + i);
        for (int k = 0; k < 4; ++k) {
          const float value = to_float(codes.of[k]);
          values.of[k] = add ? values.of[k] + value : value;
        }
        store_four(out + i, values);
      },
      [&](size_t i) {
        const float value = to_float(code_at<T>(body, i));
        out[i] = add ? out[i] + value : value;
      });
}

}  // namespace
}  // namespace q7x2
