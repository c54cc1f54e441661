// Takes marked elements on a GPU out of a tensor, and puts them back. One pass over memory each; a
// block works on a tile, whose mask and the ranks of whose words it keeps in shared memory.
#include "device/launch.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"
#include "kernels/cuda/tiles_cuda.h"

namespace q7x2 {
namespace {

constexpr unsigned kWordsOfThread = kWords / kThreads;

struct TileMask {
  uint32_t words[kWords];
  uint32_t ranks[kWords];  // rank of a word's first bit within the tile
  uint32_t of_warps[kWarps];
};

/// Reads a tile's mask. Called by all threads of the block.
__device__ void load_tile(const Marks& marks, size_t tile, TileMask& mask) {
  const auto* const words = reinterpret_cast<const uint32_t*>(marks.mask);
  const size_t count = (marks.count + 31) / 32;
  const unsigned lane = threadIdx.x % kTeam;
  const unsigned first = threadIdx.x * kWordsOfThread;
  uint32_t own = 0;
  for (unsigned i = first; i < first + kWordsOfThread; ++i) {
    const size_t at = tile * kWords + i;
    mask.words[i] = at < count ? words[at] : 0;
    own += __popc(mask.words[i]);
  }
  uint32_t upto = own;  // in the lanes up to this one
  for (unsigned step = 1; step < kTeam; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, upto, step);
    upto += lane >= step ? other : 0;
  }
  if (lane == kTeam - 1) mask.of_warps[threadIdx.x / kTeam] = upto;
  __syncthreads();
  uint32_t rank = upto - own;
  for (unsigned warp = 0; warp < threadIdx.x / kTeam; ++warp) rank += mask.of_warps[warp];
  for (unsigned i = first; i < first + kWordsOfThread; ++i) {
    mask.ranks[i] = rank;
    rank += __popc(mask.words[i]);
  }
  __syncthreads();
}

/// Calls `body` for the calling thread's elements: with their index, whether they are marked, and
/// their rank if they are.
template <class Body>
__device__ void for_each_element(const Marks& marks, TileMask& mask, Body body) {
  for (size_t tile = blockIdx.x; tile < mark_tiles(marks.count); tile += gridDim.x) {
    load_tile(marks, tile, mask);
    const uint32_t before = marks.before[tile];
    const unsigned lane = threadIdx.x % kTeam;
    for (unsigned row = 0; row < kRows; ++row) {
      const size_t i = tile * kMarkTile + row * kThreads + threadIdx.x;
      if (i >= marks.count) break;
      const unsigned word = row * kWarps + threadIdx.x / kTeam;
      const uint32_t bits = mask.words[word];
      const uint32_t in_front = bits & ((1U << lane) - 1);
      body(i, (bits >> lane & 1) != 0, before + mask.ranks[word] + __popc(in_front));
    }
    __syncthreads();  // the mask may be overwritten
  }
}

__global__ void __launch_bounds__(kThreads)
    take_marked(Marks marks, const float* values, float* error, float* taken) {
  __shared__ TileMask mask;
  for_each_element(marks, mask, [&](size_t i, bool is_marked, uint32_t rank) {
    if (error == nullptr) {
      if (is_marked) taken[rank] = values[i];
      return;
    }
    const float sum = values[i] + error[i];
    if (is_marked) taken[rank] = sum;
    error[i] = is_marked ? 0 : sum;
  });
}

template <bool kAdd>
__global__ void __launch_bounds__(kThreads) put_marked(Marks marks, const float* put, float* out) {
  __shared__ TileMask mask;
  for_each_element(marks, mask, [&](size_t i, bool is_marked, uint32_t rank) {
    if constexpr (kAdd) {
      if (is_marked) out[i] += put[rank];
    } else {
      out[i] = is_marked ? put[rank] : 0;
    }
  });
}

}  // namespace

void take_marked_cuda(const Marks& marks, const float* values, float* error, float* taken,
                      void* stream) {
  if (marks.count == 0) return;
  device::launch("collecting the elements to send on the GPU", take_marked,
                 shape_for(mark_tiles(marks.count), 1), stream, marks, values, error, taken);
}

void put_marked_cuda(const Marks& marks, const float* put, float* out, bool add, void* stream) {
  if (marks.count == 0) return;
  device::launch("storing received elements on the GPU", add ? put_marked<true> : put_marked<false>,
                 shape_for(mark_tiles(marks.count), 1), stream, marks, put, out);
}

}  // namespace q7x2
