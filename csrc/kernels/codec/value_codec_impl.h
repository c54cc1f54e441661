// The value stage, compiled once per instruction set.
//
// A value_codec_<isa>.cpp defines Q7X2_ENCODE_VALUES and Q7X2_DECODE_VALUES, the names of its entry
// points, and includes this file. Everything here has internal linkage, and uses only types of the
// standard library; see reduce_impl.h.
//
// A group passes through a buffer that stays in the L1 cache: sum of value and error, statistics,
// codes and new error, packed codes. So memory is read and written once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/pack.h"
#include "kernels/codec/random.h"
#include "kernels/codec/rotate.h"
#include "kernels/codec/value_casts.h"
#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/codec/value_group.h"
#include "kernels/codec/value_kinds.h"
#include "kernels/codec/value_pieces.h"
#include "kernels/codec/value_team.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/independent.h"

namespace q7x2 {
namespace {

void store_scale(const ValueSpec& spec, std::byte* scales, size_t group, float step, float least) {
  if (spec.minmax) {
    store_float(scales + group * 2 * sizeof(float), step);
    store_float(scales + (group * 2 + 1) * sizeof(float), least);
  } else {
    store_float(scales + group * sizeof(float), step);
  }
}

Scale load_scale(const ValueSpec& spec, const std::byte* scales, size_t group) {
  if (spec.minmax) {
    return {load_float(scales + group * 2 * sizeof(float)), 0,
            load_float(scales + (group * 2 + 1) * sizeof(float))};
  }
  return {load_float(scales + group * sizeof(float)), 0, 0};
}

template <class Coder>
void encode_groups(Coder coder, const ValueSpec& spec, const ValueBlock& block, std::byte* body) {
  Buffer buffer;
  const size_t length = spec.group;
  auto* packed = reinterpret_cast<uint8_t*>(body + scales_bytes(spec, block.count));
  for (size_t begin = 0, group = 0; begin < block.count; begin += length, ++group) {
    const size_t count = smaller(length, block.count - begin);
    const size_t coded = round_up(count, 8);
    const uint32_t largest =
        load_sums(block.values + begin, block.add == nullptr ? nullptr : block.add + begin, count,
                  buffer.sums);
    Scale scale = no_scale();
    if (largest < kInfinityBits) {
      for (size_t i = count; i < round_up(count, kLanes); ++i) buffer.sums[i] = 0;
      const Team team = {count, &buffer};
      float* const sums = buffer.sums;
      float* error = block.error == nullptr ? nullptr : block.error + begin;
      const uint64_t first = block.first + begin;
      scale = spec.hadamard ? encode_rotated(team, coder, spec, block, first, sums, error)
                            : encode_plain(team, coder, spec, block, first, sums, largest, error);
    }
    const size_t known = is_finite(scale.step) ? count : 0;
    for (size_t i = known; i < coded; ++i) buffer.codes[i] = static_cast<uint8_t>(coder.zero());
    store_scale(spec, body, group, scale.step, scale.least);
    pack(buffer.codes, spec.bits, coded, packed);
    packed += coded * spec.bits / 8;
  }
}

template <class Coder>
void decode_groups(Coder coder, const ValueSpec& spec, const std::byte* body, float* out,
                   size_t count, uint64_t first, uint64_t shared_key, bool add) {
  Buffer buffer;
  const size_t length = spec.group;
  const auto* packed = reinterpret_cast<const uint8_t*>(body + scales_bytes(spec, count));
  for (size_t begin = 0, group = 0; begin < count; begin += length, ++group) {
    const size_t here = smaller(length, count - begin);
    const size_t coded = round_up(here, 8);
    unpack(packed, spec.bits, coded, buffer.codes);
    packed += coded * spec.bits / 8;
    const Scale scale = load_scale(spec, body, group);
    const uint8_t* codes = buffer.codes;
    float* target = out + begin;
    if (spec.hadamard) {
      float* units = buffer.units;
      make_units(coder, codes, here, units);
      rotate_back(units, here, group_stream(shared_key, first + begin), scale.step);
      if (add) {
        for (size_t i = 0; i < here; ++i) target[i] += units[i];
      } else {
        for (size_t i = 0; i < here; ++i) target[i] = units[i];
      }
    } else if (add) {
      Q7X2_INDEPENDENT
      for (size_t i = 0; i < here; ++i) target[i] += coder.value(codes[i], scale);
    } else {
      Q7X2_INDEPENDENT
      for (size_t i = 0; i < here; ++i) target[i] = coder.value(codes[i], scale);
    }
  }
}

}  // namespace

void Q7X2_ENCODE_VALUES(const ValueSpec& spec, const ValueBlock& block, std::byte* body) {
  with_kind(
      spec, [&](auto code) { encode_casts<decltype(code)>(block, body); },
      [&](auto coder) { encode_groups(coder, spec, block, body); });
}

void Q7X2_DECODE_VALUES(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add) {
  with_kind(
      spec, [&](auto code) { decode_casts<decltype(code)>(body, out, count, add); },
      [&](auto coder) { decode_groups(coder, spec, body, out, count, first, shared_key, add); });
}

}  // namespace q7x2
