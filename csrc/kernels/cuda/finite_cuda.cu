// Searches numbers on a GPU for values that are not finite, in one pass over memory.
#include "device/launch.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"

namespace q7x2 {
namespace {

__global__ void __launch_bounds__(kThreads)
    find_nonfinite(const float* values, size_t count, uint32_t* found) {
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  bool is_met = false;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += threads) {
    is_met = is_met || !is_finite(values[i]);
  }
  if (__syncthreads_or(is_met ? 1 : 0) != 0 && threadIdx.x == 0) atomicExch(found, 1U);
}

}  // namespace

void find_nonfinite_cuda(const float* values, size_t count, uint32_t* found, void* stream) {
  if (count == 0) return;
  device::launch("searching for values that are not finite", find_nonfinite,
                 shape_for(count, size_t{4} * kThreads), stream, values, count, found);
}

}  // namespace q7x2
