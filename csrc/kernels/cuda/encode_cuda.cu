// Encodes values on a GPU: one pass over memory, which reads the numbers and the residual, and
// writes codes and errors. A warp works on a group (team_cuda.h).
#include "device/launch.h"
#include "kernels/cuda/casts_cuda.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/groups_cuda.h"

namespace q7x2 {
namespace {

template <class Coder, class Variant>
__global__ void __launch_bounds__(kThreads)
    encode_groups(Coder coder, ValueSpec spec, ValueBlock block, uint8_t* body) {
  constexpr int kRows = Variant::kRows;
  __shared__ BlockMemory<kRows, Variant::kRotated> memory;
  for_each_group(spec, block.count, [&](const Place& place) {
    auto team = team_of_thread<kRows>(memory.codes, place.count);
    auto sums = sums_of_team(memory);
    team.each([&](auto i) {
      const size_t at = place.first + i.element;
      sums[i] = block.add == nullptr ? block.values[at] : block.values[at] + block.add[at];
    });
    encode_sums<Variant::kRotated>(team, coder, spec, block, sums, body, place);
  });
}

}  // namespace

void encode_values_cuda(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                        void* stream) {
  if (block.count == 0) return;
  auto* bytes = reinterpret_cast<uint8_t*>(body);
  with_kind(
      spec,
      [&](auto code) {
        device::launch("encoding on the GPU", encode_casts<decltype(code)>,
                       shape_for(block.count, size_t{4} * kThreads), stream, block, bytes);
      },
      [&](auto coder) {
        using Coder = decltype(coder);
        with_variant<Coder>(spec, [&](auto variant) {
          device::launch("encoding on the GPU", encode_groups<Coder, decltype(variant)>,
                         shape_for(num_groups(spec, block.count), kTeams), stream, coder, spec,
                         block, bytes);
        });
      });
}

}  // namespace q7x2
