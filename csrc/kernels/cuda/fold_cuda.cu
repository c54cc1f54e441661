// The work of the owner of a block, as one kernel: it adds its residual, the messages of the others
// and its own numbers, in the order of the ranks. For a mean it divides by their number. Then it
// encodes the sum or stores it. Sums stay in registers, or in shared memory if groups are rotated:
// messages are read once, and the result and its error are written once.
#include <string>

#include "base/error.h"
#include "device/launch.h"
#include "kernels/cuda/casts_cuda.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"

namespace q7x2 {
namespace {

__device__ const uint8_t* body_of(const FoldSource& source) {
  return reinterpret_cast<const uint8_t*>(source.body);
}

/// A stored sum has no error. If it is not finite, the error does not change.
__device__ void store_sum(const ValueBlock& block, float* to, size_t i, float sum) {
  to[i] = sum;
  if (block.error != nullptr && is_finite(sum)) block.error[i] = 0;
}

template <class Coder, class Variant>
__global__ void __launch_bounds__(kThreads)
    fold_groups(Coder coder, ValueSpec spec, Fold fold, ValueBlock block, FoldTarget to) {
  constexpr int kRows = Variant::kRows;
  constexpr bool kRotated = Variant::kRotated;
  __shared__ BlockMemory<kRows, kRotated> memory;
  for_each_group(spec, block.count, [&](const Place& place) {
    auto team = team_of_thread<kRows>(memory.codes, place.count);
    auto sums = sums_of_team(memory);
    bool is_first = block.add == nullptr;
    if (!is_first) team.each([&](auto i) { sums[i] = block.add[place.first + i.element]; });
    for (int n = 0; n < fold.num; ++n) {
      const FoldSource& source = fold.of[n];
      const auto take = [&](auto i, float value) { sums[i] = is_first ? value : sums[i] + value; };
      if (source.body == nullptr) {
        team.each([&](auto i) { take(i, source.values[place.first + i.element]); });
      } else {
        const auto values = decode_group<kRotated>(team, coder, spec, body_of(source), place,
                                                   block.first, block.shared_key);
        team.each([&](auto i) { take(i, values[i]); });
      }
      is_first = false;
    }
    if (fold.divisor != 1) team.each([&](auto i) { sums[i] /= fold.divisor; });
    if (to.body == nullptr) {
      team.each([&](auto i) { store_sum(block, to.values, place.first + i.element, sums[i]); });
    } else {
      encode_sums<kRotated>(team, coder, spec, block, sums, reinterpret_cast<uint8_t*>(to.body),
                            place);
    }
  });
}

template <class T>
__device__ Four<float> four_of(const FoldSource& source, size_t i) {
  if (source.body == nullptr) return load_four(source.values + i);
  const Four<T> codes = four_codes_at<T>(body_of(source), i);
  Four<float> values;
  for (int k = 0; k < 4; ++k) values.of[k] = to_float(codes.of[k]);
  return values;
}

template <class T>
__device__ float one_of(const FoldSource& source, size_t i) {
  return source.body == nullptr ? source.values[i] : to_float(code_at<T>(body_of(source), i));
}

template <class T>
__device__ Four<float> four_sums(const Fold& fold, const float* add, size_t i) {
  Four<float> sums = add != nullptr ? load_four(add + i) : four_of<T>(fold.of[0], i);
  for (int n = add != nullptr ? 0 : 1; n < fold.num; ++n) {
    const Four<float> values = four_of<T>(fold.of[n], i);
    for (int k = 0; k < 4; ++k) sums.of[k] += values.of[k];
  }
  if (fold.divisor != 1) {
    for (int k = 0; k < 4; ++k) sums.of[k] /= fold.divisor;
  }
  return sums;
}

template <class T>
__device__ float one_sum(const Fold& fold, const float* add, size_t i) {
  float sum = add != nullptr ? add[i] : one_of<T>(fold.of[0], i);
  for (int n = add != nullptr ? 0 : 1; n < fold.num; ++n) sum += one_of<T>(fold.of[n], i);
  return fold.divisor != 1 ? sum / fold.divisor : sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) fold_casts(Fold fold, ValueBlock block, FoldTarget to) {
  const auto four = [&](size_t i) { return four_sums<T>(fold, block.add, i); };
  const auto one = [&](size_t i) { return one_sum<T>(fold, block.add, i); };
  if (to.body != nullptr) {
    encode_casts_of<T>(block, reinterpret_cast<uint8_t*>(to.body), four, one);
    return;
  }
  for_each_four(
      block.count,
      [&](size_t i) {
        const Four<float> sums = four(i);
        for (size_t k = 0; k < 4; ++k) store_sum(block, to.values, i + k, sums.of[k]);
      },
      [&](size_t i) { store_sum(block, to.values, i, one(i)); });
}

}  // namespace

void fold_values_cuda(const ValueSpec& spec, const Fold& fold, const ValueBlock& block,
                      const FoldTarget& to, void* stream) {
  if (fold.num < 1 || fold.num > kMostFolded) {
    throw Error(ErrorCode::kInvalidArgument, "a fold takes 1 to " + std::to_string(kMostFolded) +
                                                 " contributions, not " + std::to_string(fold.num));
  }
  if (block.count == 0) return;
  constexpr const char* kWhat = "adding messages on the GPU";
  with_kind(
      spec,
      [&](auto code) {
        device::launch(kWhat, fold_casts<decltype(code)>,
                       shape_for(block.count, size_t{4} * kThreads), stream, fold, block, to);
      },
      [&](auto coder) {
        using Coder = decltype(coder);
        with_variant<Coder>(spec, [&](auto variant) {
          device::launch(kWhat, fold_groups<Coder, decltype(variant)>,
                         shape_for(num_groups(spec, block.count), kTeams), stream, coder, spec,
                         fold, block, to);
        });
      });
}

}  // namespace q7x2
