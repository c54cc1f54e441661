// Groups in a body, and how a team of a GPU reads the numbers of a group and writes its message.
//
// Included by the CUDA sources only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/codec/pack.h"
#include "kernels/codec/value_group.h"
#include "kernels/codec/value_kinds.h"
#include "kernels/cuda/memory_cuda.h"
#include "kernels/cuda/team_cuda.h"

namespace q7x2 {
namespace {

constexpr size_t kMostBlocks = 65535;

/// The position of a group in its tensor and in a body.
struct Place {
  size_t first;    ///< element of the block
  unsigned count;  ///< numbers
  unsigned coded;  ///< codes: `count` rounded up to a multiple of 8
  size_t scales;   ///< offset in the body
  size_t packed;   ///< offset in the body
};

__device__ inline Place place_of(const ValueSpec& spec, size_t count, size_t group) {
  const size_t first = group * spec.group;
  const auto here = static_cast<unsigned>(count - first < spec.group ? count - first : spec.group);
  return {first, here, (here + 7) / 8 * 8, group * scales_of_group(spec) * sizeof(float),
          scales_bytes(spec, count) + first / 8 * spec.bits};
}

__device__ inline Scale load_scale(const ValueSpec& spec, const uint8_t* scales) {
  return {float_from_bits(load_word(scales)), 0,
          spec.minmax ? float_from_bits(load_word(scales + sizeof(float))) : 0};
}

/// Code i of a group; neighbouring lanes read neighbouring codes.
struct Codes {
  const uint8_t* packed;
  int bits;
  unsigned coded;
  __device__ int operator[](unsigned i) const {
    if ((coded & (coded - 1)) != 0) return unpacked_code(packed, bits, coded, i);
    return unpacked_code_of_power(packed, bits, 31 - __clz(static_cast<int>(coded)), i);
  }
};

/// The decoded numbers of a group.
template <bool kRotated, class Team, class Coder>
__device__ typename Team::Floats decode_group(const Team& team, Coder coder, const ValueSpec& spec,
                                              const uint8_t* body, const Place& place,
                                              uint64_t first, uint64_t shared_key) {
  using Index = typename Team::Index;
  const Scale scale = load_scale(spec, body + place.scales);
  const Codes codes = {body + place.packed, spec.bits, place.coded};
  typename Team::Floats values = {};
  if constexpr (kRotated) {
    team.each([&](Index i) { values[i] = coder.unit(codes[i.element]); });
    team.rotate_back(values, group_stream(shared_key, first + place.first), scale.step);
  } else {
    team.each([&](Index i) { values[i] = coder.value(codes[i.element], scale); });
  }
  return values;
}

/// Encodes `sums` into `body`; `block` gives the keys, and where the error is stored.
template <bool kRotated, class Team, class Coder, class Floats>
__device__ void encode_sums(Team& team, Coder coder, const ValueSpec& spec, const ValueBlock& block,
                            const Floats& sums, uint8_t* body, const Place& place) {
  const uint32_t largest = team.largest(sums);
  Scale scale = no_scale();
  if (largest < kInfinityBits) {
    const uint64_t first = block.first + place.first;
    float* error = block.error == nullptr ? nullptr : block.error + place.first;
    if constexpr (kRotated) {
      scale = encode_rotated(team, coder, spec, block, first, sums, error);
    } else {
      scale = encode_plain(team, coder, spec, block, first, sums, largest, error);
    }
  }
  const unsigned known = is_finite(scale.step) ? place.count : 0;
  for (unsigned i = known + team.lane; i < place.coded; i += kTeam) {
    team.codes[i] = static_cast<uint8_t>(coder.zero());
  }
  if (team.lane == 0) {
    store_word(body + place.scales, float_to_bits(scale.step));
    if (spec.minmax) store_word(body + place.scales + sizeof(float), float_to_bits(scale.least));
  }
  __syncwarp();  // the codes of all lanes have been written
  uint8_t* packed = body + place.packed;
  const unsigned bytes = place.coded / 8 * spec.bits;
  if (place.coded % 32 == 0) {
    const auto* codes = reinterpret_cast<const uint32_t*>(team.codes);
    for (unsigned i = team.lane; i < bytes / 4; i += kTeam) {
      store_word(packed + size_t{4} * i, packed_word(codes, spec.bits, place.coded, i));
    }
  } else {
    for (unsigned i = team.lane; i < bytes; i += kTeam) {
      packed[i] = packed_byte(team.codes, spec.bits, place.coded, i);
    }
  }
  __syncwarp();  // the codes may be overwritten
}

/// Calls `body` for the groups of the calling thread's team.
template <class Body>
__device__ void for_each_group(const ValueSpec& spec, size_t count, Body body) {
  const size_t groups = num_groups(spec, count);
  for (size_t group = static_cast<size_t>(blockIdx.x) * kTeams + threadIdx.x / kTeam;
       group < groups; group += static_cast<size_t>(gridDim.x) * kTeams) {
    body(place_of(spec, count, group));
  }
}

/// Enough blocks for `work` pieces, if a block processes `of_block` of them at once.
inline device::LaunchShape shape_for(size_t work, size_t of_block) {
  const size_t blocks = (work + of_block - 1) / of_block;
  return {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads};
}

/// The template arguments of a kernel: rows of a team, and whether groups are rotated.
template <int kRowsOf, bool kIsRotated>
struct Variant {
  static constexpr int kRows = kRowsOf;
  static constexpr bool kRotated = kIsRotated;
};

/// Calls `body` with the variant for groups of this kind.
template <bool kRotated, class Body>
void with_rows(const ValueSpec& spec, Body body) {
  if (spec.group <= 128) return body(Variant<4, kRotated>{});
  if (spec.group <= 512) return body(Variant<16, kRotated>{});
  return body(Variant<32, kRotated>{});
}
template <class Coder, class Body>
void with_variant(const ValueSpec& spec, Body body) {
  if constexpr (!std::is_same_v<Coder, AffineSteps>) {  // rotated numbers are centred around zero
    if (spec.hadamard) return with_rows<true>(spec, body);
  }
  with_rows<false>(spec, body);
}

}  // namespace
}  // namespace q7x2
