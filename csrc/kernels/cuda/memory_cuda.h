// How a thread of a GPU reads and writes memory: several elements at once if they are aligned.
// Messages may begin at any byte.
//
// Included by the CUDA sources only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/launch.h"
#include "kernels/codec/value_elements.h"

namespace q7x2 {
namespace {

__device__ __forceinline__ bool is_aligned(const void* address, unsigned to) {
  return (reinterpret_cast<uintptr_t>(address) & (to - 1)) == 0;
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* from) {
  if (is_aligned(from, 4)) return *reinterpret_cast<const uint32_t*>(from);
  return from[0] | static_cast<uint32_t>(from[1]) << 8 | static_cast<uint32_t>(from[2]) << 16 |
         static_cast<uint32_t>(from[3]) << 24;
}

__device__ __forceinline__ void store_word(uint8_t* to, uint32_t word) {
  if (is_aligned(to, 4)) {
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

/// Four neighbouring elements.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T of[4];
};

template <class T>
__device__ __forceinline__ Four<T> load_four(const T* from) {
  if (is_aligned(from, sizeof(Four<T>))) return *reinterpret_cast<const Four<T>*>(from);
  return {{from[0], from[1], from[2], from[3]}};
}

template <class T>
__device__ __forceinline__ void store_four(T* to, Four<T> values) {
  if (is_aligned(to, sizeof(Four<T>))) {
    *reinterpret_cast<Four<T>*>(to) = values;
    return;
  }
  for (int i = 0; i < 4; ++i) to[i] = values.of[i];
}

}  // namespace
}  // namespace q7x2
