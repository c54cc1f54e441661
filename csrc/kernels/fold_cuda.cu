// What the owner of a block does, as one kernel: it decodes the messages of the others, adds them
// and its own numbers in the order of the ranks, and encodes the sum. Sums stay in registers, or in
// shared memory if groups are rotated: messages
// are read once, and the result and its error are written once.
#include <string>

#include "base/error.h"
#include "device/launch.h"
#include "kernels/casts_cuda.h"
#include "kernels/codec_cuda.h"
#include "kernels/groups_cuda.h"

namespace q7x2 {
namespace {

__device__ const uint8_t* body_of(const FoldSource& source) {
  return reinterpret_cast<const uint8_t*>(source.body);
}

template <class Coder, class Variant>
__global__ void __launch_bounds__(kThreads)
    fold_groups(Coder coder, ValueSpec spec, FoldSources sources, ValueBlock block, uint8_t* body) {
  constexpr int kRows = Variant::kRows;
  constexpr bool kRotated = Variant::kRotated;
  __shared__ BlockMemory<kRows, kRotated> memory;
  for_each_group(spec, block.count, [&](const Place& place) {
    auto team = team_of_thread<kRows>(memory.codes, place.count);
    auto sums = sums_of_team(memory);
    for (int n = 0; n < sources.num; ++n) {
      const FoldSource& source = sources.of[n];
      const auto take = [&](auto i, float value) { sums[i] = n == 0 ? value : sums[i] + value; };
      if (source.body == nullptr) {
        team.each([&](auto i) { take(i, source.values[place.first + i.element]); });
      } else {
        const auto values = decode_group<kRotated>(team, coder, spec, body_of(source), place,
                                                   block.first, block.shared_key);
        team.each([&](auto i) { take(i, values[i]); });
      }
    }
    if (block.add != nullptr) {
      team.each([&](auto i) { sums[i] += block.add[place.first + i.element]; });
    }
    encode_sums<kRotated>(team, coder, spec, block, sums, body, place);
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
__global__ void __launch_bounds__(kThreads)
    fold_casts(FoldSources sources, ValueBlock block, uint8_t* body) {
  encode_casts_of<T>(
      block, body,
      [&](size_t i) {
        Four<float> sums = four_of<T>(sources.of[0], i);
        for (int n = 1; n < sources.num; ++n) {
          const Four<float> values = four_of<T>(sources.of[n], i);
          for (int k = 0; k < 4; ++k) sums.of[k] += values.of[k];
        }
        return sums;
      },
      [&](size_t i) {
        float sum = one_of<T>(sources.of[0], i);
        for (int n = 1; n < sources.num; ++n) sum += one_of<T>(sources.of[n], i);
        return sum;
      });
}

}  // namespace

void fold_values_cuda(const ValueSpec& spec, const FoldSources& sources, const ValueBlock& block,
                      std::byte* body, void* stream) {
  if (sources.num < 1 || sources.num > kMostFolded) {
    throw Error(ErrorCode::kInvalidArgument, "a fold takes 1 to " + std::to_string(kMostFolded) +
                                                 " contributions, not " +
                                                 std::to_string(sources.num));
  }
  if (block.count == 0) return;
  constexpr const char* kWhat = "adding messages on the GPU";
  auto* bytes = reinterpret_cast<uint8_t*>(body);
  with_kind(
      spec,
      [&](auto code) {
        device::launch(kWhat, fold_casts<decltype(code)>,
                       shape_for(block.count, size_t{4} * kThreads), stream, sources, block, bytes);
      },
      [&](auto coder) {
        using Coder = decltype(coder);
        with_variant<Coder>(spec, [&](auto variant) {
          device::launch(kWhat, fold_groups<Coder, decltype(variant)>,
                         shape_for(num_groups(spec, block.count), kTeams), stream, coder, spec,
                         sources, block, bytes);
        });
      });
}

}  // namespace q7x2
