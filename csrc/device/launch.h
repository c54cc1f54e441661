// How a kernel is started, and its language.
//
// nvcc knows that language. For any other compiler it comes from fibres/cuda_language.h, which is
// only on the include path of the substitute in tests/device: there the threads of a block are
// fibres of one CPU thread, and `launch` returns when the kernel is complete.
#pragma once

#include <cstddef>

namespace q7x2::device {

struct LaunchShape {
  unsigned blocks = 1;
  unsigned threads = 1;     ///< per block
  size_t shared_bytes = 0;  ///< per block, in addition to the kernel's own: `dynamic_shared`
};

}  // namespace q7x2::device

#if defined(__CUDACC__)

#include <cuda_runtime_api.h>

/// Before a loop: unrolls it if its length is known at compile time.
#define Q7X2_UNROLL _Pragma("unroll")
/// Before a loop: does not unroll it.
#define Q7X2_ONE_BY_ONE _Pragma("unroll 1")

namespace q7x2::device {

/// Throws Error(kInternal) with CUDA's status if the last launch of this thread failed.
void check_launch(const char* what);

/// Starts `kernel` on `stream`, a cudaStream_t of the current device, and returns. `what` names the
/// work in errors, which are those of `check_launch`.
template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), LaunchShape shape, void* stream,
            Arguments... arguments) {
  kernel<<<shape.blocks, shape.threads, shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  check_launch(what);
}

/// The dynamic shared memory of the calling block, aligned to 16 bytes.
inline __device__ std::byte* dynamic_shared() {
  extern __shared__ uint4 q7x2_dynamic_shared[];
  return reinterpret_cast<std::byte*>(q7x2_dynamic_shared);
}

}  // namespace q7x2::device

#else

#define Q7X2_UNROLL
#define Q7X2_ONE_BY_ONE

#include "fibres/cuda_language.h"

#endif
