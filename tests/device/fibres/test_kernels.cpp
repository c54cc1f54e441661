#include "test_kernels.h"

#include <limits>

#include "device/launch.h"

namespace q7x2::fibres::test {
namespace {

constexpr unsigned kAll = ~0u;

__global__ void reverse_kernel(const int* in, int* out, bool barrier) {
  __shared__ int part[1024];
  const unsigned first = blockIdx.x * blockDim.x;
  part[threadIdx.x] = in[first + threadIdx.x];
  if (barrier) __syncthreads();
  out[first + threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
}

__global__ void sum_kernel(const int* in, int* out, bool barriers) {
  __shared__ int part[1024];
  part[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    if (barriers) __syncthreads();
  }
  if (threadIdx.x == 0) *out = part[0];
}

__global__ void histogram_kernel(const unsigned* values, unsigned* counts, bool atomic) {
  auto* bins = reinterpret_cast<unsigned*>(device::dynamic_shared());
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  const unsigned value = values[blockIdx.x * blockDim.x + threadIdx.x];
  if (atomic) {
    atomicAdd(bins + value, 1);
  } else {
    ++bins[value];
  }
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(counts + threadIdx.x, bins[threadIdx.x]);
}

struct WarpOut {
  int* from_next;
  int* from_xor;
  int* from_above;
  int* from_below;
  double* wide;
  unsigned* ballot;
  int* most;
  unsigned* total;
  int* half_least;
};

__global__ void warp_kernel(WarpOut out) {
  const auto lane = static_cast<int>(threadIdx.x);
  out.from_next[lane] = __shfl_sync(kAll, lane, lane + 1, 8);
  out.from_xor[lane] = __shfl_xor_sync(kAll, lane, 5);
  out.from_above[lane] = __shfl_up_sync(kAll, lane, 3, 16);
  out.from_below[lane] = __shfl_down_sync(kAll, lane, 3, 16);
  out.wide[lane] = __shfl_sync(kAll, lane + 0.5, 7);
  out.ballot[lane] = __ballot_sync(kAll, lane % 2);
  out.most[lane] = __reduce_max_sync(kAll, lane - 40);
  out.total[lane] = __reduce_add_sync(kAll, static_cast<unsigned>(lane));
  if (lane < 16) {
    out.half_least[lane] = __reduce_min_sync(0xFFFFu, lane + 1);
  } else {
    out.half_least[lane] = __reduce_min_sync(0xFFFF0000u, lane + 1);
  }
}

__global__ void rotate_warp_kernel(int* out, bool barrier) {
  __shared__ int part[32];
  part[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (barrier) __syncwarp();
  out[threadIdx.x] = part[(threadIdx.x + 1) % 32];
}

__global__ void swap_warps_kernel(int* out) {
  __shared__ int part[64];
  part[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp();
  out[threadIdx.x] = part[threadIdx.x ^ 32];
}

__global__ void branch_kernel() {
  if (threadIdx.x < 7) __syncthreads();
  __syncwarp();
}

__global__ void two_barriers_kernel() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void absent_lane_kernel() {
  if (threadIdx.x == 5) return;
  __syncwarp();
}

__global__ void own_lane_kernel() {
  __syncwarp(1);
}

__global__ void unwritten_kernel(int* out) {
  __shared__ int part[32];
  if (threadIdx.x == 0) part[0] = 1;
  __syncthreads();
  out[threadIdx.x] = part[threadIdx.x];
}

__global__ void one_word_kernel(int* out) {
  if (threadIdx.x == 0) *out = static_cast<int>(blockIdx.x);
}

__global__ void local_kernel(int* out) {
  __shared__ int* pointer;
  int mine = 1;
  if (threadIdx.x == 0) pointer = &mine;
  __syncthreads();
  out[threadIdx.x] = *pointer;
}

__global__ void nothing_kernel() {}

__global__ void launching_kernel() {
  if (threadIdx.x == 0) device::launch("inner", nothing_kernel, {.blocks = 1}, nullptr);
}

__global__ void order_kernel(unsigned* next, unsigned* order) {
  order[atomicAdd(next, 1)] = threadIdx.x;
}

}  // namespace

std::vector<int> reverse_blocks(const std::vector<int>& in, unsigned threads, bool barrier) {
  std::vector<int> out(in.size());
  device::launch("reverse", reverse_kernel,
                 {.blocks = static_cast<unsigned>(in.size()) / threads, .threads = threads},
                 nullptr, in.data(), out.data(), barrier);
  return out;
}

int sum_of_block(const std::vector<int>& in, bool barriers) {
  int out = 0;
  device::launch("sum", sum_kernel, {.blocks = 1, .threads = static_cast<unsigned>(in.size())},
                 nullptr, in.data(), &out, barriers);
  return out;
}

std::vector<unsigned> histogram(const std::vector<unsigned>& values, bool atomic) {
  std::vector<unsigned> counts(16);
  device::launch(
      "histogram", histogram_kernel,
      {.blocks = static_cast<unsigned>(values.size()) / 64, .threads = 64, .shared_bytes = 64},
      nullptr, values.data(), counts.data(), atomic);
  return counts;
}

WarpResults warp_operations() {
  WarpResults results;
  const auto room = [](auto& vector) {
    vector.resize(32);
    return vector.data();
  };
  const WarpOut out = {room(results.from_next),  room(results.from_xor), room(results.from_above),
                       room(results.from_below), room(results.wide),     room(results.ballot),
                       room(results.most),       room(results.total),    room(results.half_least)};
  device::launch("warp", warp_kernel, {.blocks = 1, .threads = 32}, nullptr, out);
  return results;
}

std::vector<int> rotate_warp(bool barrier) {
  std::vector<int> out(32);
  device::launch("rotate", rotate_warp_kernel, {.blocks = 1, .threads = 32}, nullptr, out.data(),
                 barrier);
  return out;
}

std::vector<int> swap_warps() {
  std::vector<int> out(64);
  device::launch("swap", swap_warps_kernel, {.blocks = 1, .threads = 64}, nullptr, out.data());
  return out;
}

void barrier_in_one_branch() {
  device::launch("branch", branch_kernel, {.blocks = 1, .threads = 32}, nullptr);
}
void two_barriers() {
  device::launch("two barriers", two_barriers_kernel, {.blocks = 1, .threads = 64}, nullptr);
}
void lane_that_does_not_come() {
  device::launch("absent", absent_lane_kernel, {.blocks = 1, .threads = 32}, nullptr);
}
void mask_without_itself() {
  device::launch("own lane", own_lane_kernel, {.blocks = 1, .threads = 32}, nullptr);
}
void unwritten_shared() {
  std::vector<int> out(32);
  device::launch("unwritten", unwritten_kernel, {.blocks = 2, .threads = 32}, nullptr, out.data());
}
void blocks_write_one_word() {
  int out = 0;
  device::launch("one word", one_word_kernel, {.blocks = 2, .threads = 32}, nullptr, &out);
}
void local_memory_of_another() {
  std::vector<int> out(32);
  device::launch("local", local_kernel, {.blocks = 1, .threads = 32}, nullptr, out.data());
}
void launch_in_kernel() {
  device::launch("outer", launching_kernel, {.blocks = 1, .threads = 32}, nullptr);
}

std::vector<unsigned> order_of_threads(unsigned threads) {
  unsigned next = 0;
  std::vector<unsigned> order(threads);
  device::launch("order", order_kernel, {.blocks = 1, .threads = threads}, nullptr, &next,
                 order.data());
  return order;
}

}  // namespace q7x2::fibres::test
