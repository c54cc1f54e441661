// Integers that add, on a GPU: the functions of kernels/codec/sum_int.h, each in one pass over
// memory.
//
// A warp finds the maximum of a group. After that a number depends only on itself and that maximum,
// so each thread encodes and decodes four neighbours.
#include "device/launch.h"
#include "kernels/codec/sum_int_elements.h"
#include "kernels/cuda/casts_cuda.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"

namespace q7x2 {
namespace {

__device__ __forceinline__ float sum_at(const SumIntBlock& block, size_t i) {
  return block.errors == nullptr ? block.values[i] : block.values[i] + block.errors[i];
}

/// The numbers of a group, for a team.
struct GroupSums {
  const SumIntBlock& block;
  size_t first;
  template <class Index>
  __device__ float operator[](Index i) const {
    return sum_at(block, first + i.element);
  }
};

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    find_maxima(ValueSpec spec, SumIntBlock block, float* maxima) {
  for_each_group(spec, block.count, [&](const Place& place) {
    const auto team = team_of_thread<kRows>(nullptr, place.count);
    const uint32_t largest = team.largest(GroupSums{block, place.first});
    if (team.lane == 0) maxima[place.first / spec.group] = group_maximum(largest);
  });
}

template <class Int>
__global__ void __launch_bounds__(kThreads)
    encode_integers(ValueSpec spec, int levels, SumIntBlock block, const float* maxima,
                    Int* codes) {
  const int log2_group = 31 - __clz(static_cast<int>(spec.group));
  const auto code_of = [&](const SumIntSteps<Int>& steps, size_t i, float sum) {
    const size_t begin = i >> log2_group << log2_group;
    return steps.code(sum, sum_int_chance(spec, block.rounding_key, begin, i));
  };
  for_each_four(
      block.count,
      [&](size_t i) {
        const float maximum = maxima[i >> log2_group];
        if (!is_finite(maximum)) {
          store_four(codes + i, Four<Int>{});
          return;
        }
        const SumIntSteps<Int> steps(maximum, levels);
        Four<float> sums = load_four(block.values + i);
        if (block.errors != nullptr) {
          const Four<float> errors = load_four(block.errors + i);
          for (int k = 0; k < 4; ++k) sums.of[k] += errors.of[k];
        }
        Four<Int> out;
        for (int k = 0; k < 4; ++k) out.of[k] = code_of(steps, i + k, sums.of[k]);
        store_four(codes + i, out);
        if (block.errors == nullptr) return;
        for (int k = 0; k < 4; ++k) sums.of[k] = steps.lost(sums.of[k], out.of[k]);
        store_four(block.errors + i, sums);
      },
      [&](size_t i) {
        const float maximum = maxima[i >> log2_group];
        codes[i] = 0;
        if (!is_finite(maximum)) return;
        const SumIntSteps<Int> steps(maximum, levels);
        const float sum = sum_at(block, i);
        codes[i] = code_of(steps, i, sum);
        if (block.errors != nullptr) block.errors[i] = steps.lost(sum, codes[i]);
      });
}

template <class Int>
__global__ void __launch_bounds__(kThreads)
    decode_integers(ValueSpec spec, int levels, const Int* sums, const float* maxima, int divisor,
                    float* out, size_t count) {
  const int log2_group = 31 - __clz(static_cast<int>(spec.group));
  for_each_four(
      count,
      [&](size_t i) {
        const SumIntSteps<Int> steps(maxima[i >> log2_group], levels);
        const Four<Int> four = load_four(sums + i);
        Four<float> values;
        for (int k = 0; k < 4; ++k) values.of[k] = steps.value(four.of[k], divisor);
        store_four(out + i, values);
      },
      [&](size_t i) {
        out[i] = SumIntSteps<Int>(maxima[i >> log2_group], levels).value(sums[i], divisor);
      });
}

}  // namespace

void group_maxima_cuda(const ValueSpec& spec, const SumIntBlock& block, float* maxima,
                       void* stream) {
  if (block.count == 0) return;
  with_rows<false>(spec, [&](auto variant) {
    device::launch("finding maxima on the GPU", find_maxima<decltype(variant)::kRows>,
                   shape_for(num_groups(spec, block.count), kTeams), stream, spec, block, maxima);
  });
}

void encode_sum_int_cuda(const ValueSpec& spec, int levels, const SumIntBlock& block,
                         const float* maxima, void* codes, void* stream) {
  if (block.count == 0) return;
  with_integers(spec, [&]<class Int>(Int) {
    device::launch("making integers on the GPU", encode_integers<Int>,
                   shape_for(block.count, size_t{4} * kThreads), stream, spec, levels, block,
                   maxima, static_cast<Int*>(codes));
  });
}

void decode_sum_int_cuda(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                         int divisor, float* out, size_t count, void* stream) {
  if (count == 0) return;
  with_integers(spec, [&]<class Int>(Int) {
    device::launch("reading integers on the GPU", decode_integers<Int>,
                   shape_for(count, size_t{4} * kThreads), stream, spec, levels,
                   static_cast<const Int*>(sums), maxima, divisor, out, count);
  });
}

}  // namespace q7x2
