// CUDA's language for a compiler that does not know it: with this header, kernels compile as plain
// C++, and `launch` runs them on the CPU (grid.h). device/launch.h includes it.
//
// What kernels here may use: one-dimensional grids, static and dynamic shared memory, barriers,
// votes, shuffles and reductions of warps, atomics of 32 and 64 bits. Masks must name the lanes
// that come. Leave out a function that is missing here, or add it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fibres/grid.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// One for each thread of the CPU, which runs one block at a time.
#define __shared__ static thread_local
#define gridDim (::q7x2::fibres::grid_size())
#define blockDim (::q7x2::fibres::block_size())
#define blockIdx (::q7x2::fibres::block_index())
#define threadIdx (::q7x2::fibres::thread_index())

// A barrier's line is that of its caller.
inline void __syncthreads(int line = __builtin_LINE()) {
  q7x2::fibres::sync_block(false, line);
}
inline int __syncthreads_count(int vote, int line = __builtin_LINE()) {
  return static_cast<int>(q7x2::fibres::sync_block(vote != 0, line));
}
inline int __syncthreads_or(int vote, int line = __builtin_LINE()) {
  return q7x2::fibres::sync_block(vote != 0, line) > 0 ? 1 : 0;
}
inline int __syncthreads_and(int vote, int line = __builtin_LINE()) {
  return q7x2::fibres::sync_block(vote == 0, line) == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  q7x2::fibres::sync_warp(mask, line);
}
inline unsigned __ballot_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return q7x2::fibres::ballot(mask, vote != 0, line);
}
inline int __any_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return q7x2::fibres::ballot(mask, vote != 0, line) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return q7x2::fibres::ballot(mask, vote == 0, line) == 0 ? 1 : 0;
}

namespace q7x2::fibres {

template <class T>
T shuffled(unsigned mask, T value, unsigned source, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = shuffle(mask, bits, source, line);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline unsigned lane() {
  return thread_index().x % 32;
}

}  // namespace q7x2::fibres

// Of a part of the warp of `width` lanes, a power of two. Lanes beyond it give the own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
  const auto part = static_cast<unsigned>(width);
  const unsigned base = q7x2::fibres::lane() / part * part;
  return q7x2::fibres::shuffled(mask, value, base + static_cast<unsigned>(source) % part, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {
  const unsigned lane = q7x2::fibres::lane();
  const unsigned source = lane ^ static_cast<unsigned>(lanes);
  const auto part = static_cast<unsigned>(width);
  return q7x2::fibres::shuffled(mask, value, source / part > lane / part ? lane : source, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                   int line = __builtin_LINE()) {
  const unsigned lane = q7x2::fibres::lane();
  const auto part = static_cast<unsigned>(width);
  return q7x2::fibres::shuffled(mask, value, lane % part + lanes < part ? lane + lanes : lane,
                                line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                 int line = __builtin_LINE()) {
  const unsigned lane = q7x2::fibres::lane();
  const auto part = static_cast<unsigned>(width);
  return q7x2::fibres::shuffled(mask, value, lane % part >= lanes ? lane - lanes : lane, line);
}

#define Q7X2_WARP_REDUCTION(name, type, reduction)                                                \
  inline type name(unsigned mask, type value, int line = __builtin_LINE()) {                      \
    return static_cast<type>(q7x2::fibres::reduce(mask, static_cast<uint32_t>(value),             \
                                                  q7x2::fibres::WarpReduction::reduction, line)); \
  }
Q7X2_WARP_REDUCTION(__reduce_add_sync, unsigned, kAdd)
Q7X2_WARP_REDUCTION(__reduce_add_sync, int, kAdd)
Q7X2_WARP_REDUCTION(__reduce_min_sync, unsigned, kMin)
Q7X2_WARP_REDUCTION(__reduce_min_sync, int, kSignedMin)
Q7X2_WARP_REDUCTION(__reduce_max_sync, unsigned, kMax)
Q7X2_WARP_REDUCTION(__reduce_max_sync, int, kSignedMax)
Q7X2_WARP_REDUCTION(__reduce_and_sync, unsigned, kAnd)
Q7X2_WARP_REDUCTION(__reduce_or_sync, unsigned, kOr)
Q7X2_WARP_REDUCTION(__reduce_xor_sync, unsigned, kXor)
#undef Q7X2_WARP_REDUCTION

namespace q7x2::fibres {

/// Nothing runs between the two, because fibres change at barriers only.
template <class T, class Change>
T change_atomically(T* address, Change change) {
  note_atomic(address, sizeof(T));
  const T before = __atomic_load_n(address, __ATOMIC_RELAXED);
  __atomic_store_n(address, change(before), __ATOMIC_RELAXED);
  return before;
}

}  // namespace q7x2::fibres

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address,
                                         [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address, [=](T old) { return std::max(old, value); });
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address, [=](T old) { return std::min(old, value); });
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address, [=](T old) { return old | value; });
}
template <class T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address, [=](T old) { return old & value; });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return q7x2::fibres::change_atomically(address,
                                         [=](T old) { return old == expected ? value : old; });
}

inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline int __clz(int bits) {
  return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits));
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}

namespace q7x2::device {

/// Runs the kernel to its end. Throws fibres::KernelError if it does what no kernel may do.
template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), LaunchShape shape, void*,
            Arguments... arguments) {
  fibres::run_grid(what, shape.blocks, shape.threads, shape.shared_bytes,
                   [&] { kernel(arguments...); });
}

using fibres::dynamic_shared;

}  // namespace q7x2::device
