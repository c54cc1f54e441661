// Decodes messages on a GPU, in one pass over memory.
//
// Without a rotation a number depends only on its code and its group's scale. So each thread
// decodes four neighbours: their codes are the same bits of four neighbouring bytes
// (kernels/codec/pack.h). With a rotation, a warp decodes a group (team_cuda.h).
#include "device/launch.h"
#include "kernels/cuda/casts_cuda.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"

namespace q7x2 {
namespace {

template <class Coder>
__global__ void __launch_bounds__(kThreads)
    decode_plain(Coder coder, ValueSpec spec, const uint8_t* body, float* out, size_t count,
                 bool add) {
  const int log2_group = 31 - __clz(static_cast<int>(spec.group));
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  const size_t thread = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t fours = (count >> log2_group) << (log2_group - 2);
  for (size_t i = thread; i < fours; i += threads) {
    const Place place = place_of(spec, count, i >> (log2_group - 2));
    const Scale scale = load_scale(spec, body + place.scales);
    const uint8_t* packed = body + place.packed;
    const auto word = [&](unsigned n) { return load_word(packed + size_t{4} * n); };
    const auto within = static_cast<unsigned>(i) & ((1u << (log2_group - 2)) - 1);
    const uint32_t codes = unpacked_codes_of_power(word, spec.bits, log2_group, within);
    Four<float> values = {};
    if (add) values = load_four(out + 4 * i);
    for (int k = 0; k < 4; ++k) {
      const float value = coder.value(static_cast<int>(codes >> (8 * k) & 0xFF), scale);
      values.of[k] = add ? values.of[k] + value : value;
    }
    store_four(out + 4 * i, values);
  }
  if (4 * fours == count) return;
  // The last group is shorter than the others.
  const Place place = place_of(spec, count, count >> log2_group);
  const Scale scale = load_scale(spec, body + place.scales);
  const Codes codes = {body + place.packed, spec.bits, place.coded};
  for (size_t i = thread; i < place.count; i += threads) {
    const float value = coder.value(codes[static_cast<unsigned>(i)], scale);
    float& target = out[place.first + i];
    target = add ? target + value : value;
  }
}

template <class Coder, int kRows>
__global__ void __launch_bounds__(kThreads)
    decode_rotated(Coder coder, ValueSpec spec, const uint8_t* body, float* out, size_t count,
                   uint64_t first, uint64_t shared_key, bool add) {
  for_each_group(spec, count, [&](const Place& place) {
    const auto team = team_of_thread<kRows>(nullptr, place.count);
    const auto values = decode_group<true>(team, coder, spec, body, place, first, shared_key);
    team.each([&](auto i) {
      float& target = out[place.first + i.element];
      target = add ? target + values[i] : values[i];
    });
  });
}

}  // namespace

void decode_values_cuda(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add, void* stream) {
  if (count == 0) return;
  constexpr const char* kWhat = "decoding on the GPU";
  const auto* bytes = reinterpret_cast<const uint8_t*>(body);
  const device::LaunchShape each_four = shape_for(count, size_t{4} * kThreads);
  with_kind(
      spec,
      [&](auto code) {
        device::launch(kWhat, decode_casts<decltype(code)>, each_four, stream, bytes, out, count,
                       add);
      },
      [&](auto coder) {
        using Coder = decltype(coder);
        if (!spec.hadamard) {
          device::launch(kWhat, decode_plain<Coder>, each_four, stream, coder, spec, bytes, out,
                         count, add);
          return;
        }
        with_rows<true>(spec, [&](auto variant) {
          device::launch(kWhat, decode_rotated<Coder, decltype(variant)::kRows>,
                         shape_for(num_groups(spec, count), kTeams), stream, coder, spec, bytes,
                         out, count, first, shared_key, add);
        });
      });
}

}  // namespace q7x2
