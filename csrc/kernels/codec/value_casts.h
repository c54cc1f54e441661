// Casts of values to shorter floats and back, each by itself.
//
// Compiled once for each instruction set, with internal linkage: see value_codec_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/codec/value_kinds.h"
#include "kernels/codec/value_pieces.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/independent.h"

namespace q7x2 {
namespace {

/// A code of T at any address.
template <class T>
struct __attribute__((packed, may_alias)) CodeAt {
  typename T::Bits bits;
};

template <class T>
void narrow_all(const float* values, size_t count, std::byte* body) {
  auto* codes = reinterpret_cast<CodeAt<T>*>(body);
  size_t i = 0;
  if constexpr (std::is_same_v<T, Whole>) {
    __builtin_memcpy(body, values, count * sizeof(float));
    return;
  } else {
#if defined(Q7X2_HALF_VECTORS)
    if constexpr (std::is_same_v<T, Float16>) {
      for (; count - i >= kHalfLanes; i += kHalfLanes) {
        store(reinterpret_cast<Float16*>(body) + i, load(values + i));
      }
    }
#endif
    Q7X2_INDEPENDENT
    for (; i < count; ++i) codes[i].bits = from_float<T>(values[i]).bits;
  }
}

template <class T>
void widen_all(const std::byte* body, size_t count, float* values) {
  const auto* codes = reinterpret_cast<const CodeAt<T>*>(body);
  size_t i = 0;
#if defined(Q7X2_HALF_VECTORS)
  if constexpr (std::is_same_v<T, Float16>) {
    for (; count - i >= kHalfLanes; i += kHalfLanes) {
      store(values + i, load(reinterpret_cast<const Float16*>(body) + i));
    }
  }
#endif
  Q7X2_INDEPENDENT
  for (; i < count; ++i) values[i] = to_float(T{codes[i].bits});
}

template <class T>
void encode_casts(const ValueBlock& block, std::byte* body) {
  Buffer buffer;
  for (size_t begin = 0; begin < block.count; begin += kPiece) {
    const size_t count = smaller(kPiece, block.count - begin);
    std::byte* codes = body + begin * sizeof(T);
    load_sums(block.values + begin, block.add == nullptr ? nullptr : block.add + begin, count,
              buffer.sums);
    narrow_all<T>(buffer.sums, count, codes);
    if (block.error == nullptr) continue;
    if constexpr (std::is_same_v<T, Whole>) {
      float* error = block.error + begin;
      Q7X2_INDEPENDENT
      for (size_t i = 0; i < count; ++i) error[i] = is_finite(buffer.sums[i]) ? 0 : error[i];
      continue;
    }
    widen_all<T>(codes, count, buffer.units);
    float* error = block.error + begin;
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      const float lost = (buffer.sums[i] - buffer.units[i]) * block.error_scale;
      error[i] = is_finite(lost) ? lost : error[i];
    }
  }
}

template <class T>
void decode_casts(const std::byte* body, float* out, size_t count, bool add) {
  if (!add) return widen_all<T>(body, count, out);
  Buffer buffer;
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t here = smaller(kPiece, count - begin);
    widen_all<T>(body + begin * sizeof(T), here, buffer.units);
    for (size_t i = 0; i < here; ++i) out[begin + i] += buffer.units[i];
  }
}

}  // namespace

}  // namespace q7x2
