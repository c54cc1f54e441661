// The value stage, compiled once for each instruction set.
//
// A value_codec_<isa>.cpp defines Q7X2_ENCODE_VALUES and Q7X2_DECODE_VALUES, the names of its entry
// points, and includes this file. All here has internal linkage, and nothing comes from the
// standard library but types; see reduce_impl.h.
//
// A group passes through a buffer that stays in the L1 cache: sum of value and error, statistics,
// codes and new error, packed codes. So memory is read and written once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/elements.h"
#include "kernels/independent.h"
#include "kernels/pack.h"
#include "kernels/random.h"
#include "kernels/rotate.h"
#include "kernels/value_casts.h"
#include "kernels/value_codec.h"
#include "kernels/value_elements.h"
#include "kernels/value_pieces.h"

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

/// What `group_chance` says of each element; `count` is a multiple of 32.
void fill_chances(RandomStream stream, size_t count, float* chances) {
  for (size_t i = 0; i < count; i += 32) {
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t word = random_bits(stream, static_cast<uint32_t>(i / 2 + j));
      chances[i + j] = chance_of(word & 0xFFFF);
      chances[i + 16 + j] = chance_of(word >> 16);
    }
  }
}

/// `error` may be null.
template <class Coder, class Chance>
void make_codes(Coder coder, Scale scale, const float* values, size_t count, Chance chance,
                uint8_t* codes, float* error, float error_scale) {
  if (error == nullptr) {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<uint8_t>(coder.code(values[i], scale, chance(i)));
    }
  } else {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      const int code = coder.code(values[i], scale, chance(i));
      codes[i] = static_cast<uint8_t>(code);
      error[i] = (values[i] - coder.value(code, scale)) * error_scale;
    }
  }
}

/// `chances` may be null: then to the nearest.
template <class Coder>
void make_codes(Coder coder, Scale scale, const float* values, size_t count, const float* chances,
                uint8_t* codes, float* error, float error_scale) {
  if (chances != nullptr) {
    make_codes(
        coder, scale, values, count, [=](size_t i) { return chances[i]; }, codes, error,
        error_scale);
  } else {
    make_codes(
        coder, scale, values, count, [](size_t) { return 0.5F; }, codes, error, error_scale);
  }
}

template <class Coder>
void make_units(Coder coder, const uint8_t* codes, size_t count, float* units) {
  for (size_t i = 0; i < count; ++i) units[i] = coder.unit(codes[i]);
}

/// Codes the numbers of `buffer.sums`, and writes their error. Returns the scale that goes with the
/// codes; its step is not finite where the group has none.
template <class Coder>
Scale encode_group(Coder coder, const ValueSpec& spec, size_t count, uint32_t largest,
                   uint64_t first, const ValueBlock& block, Buffer& buffer, float* error) {
  const size_t padded = round_up(count, kLanes);
  for (size_t i = count; i < padded; ++i) buffer.sums[i] = 0;
  const bool stochastic = spec.stochastic && error == nullptr;
  const float* chances = nullptr;
  if (stochastic) {
    fill_chances(group_stream(block.rounding_key, first), round_up(count, 32), buffer.units);
    chances = buffer.units;
  }
  if (!spec.hadamard) {
    const Scale scale = scale_of(spec, buffer.sums, count, largest, stochastic);
    if (!is_finite(scale.step)) return scale;
    make_codes(coder, scale, buffer.sums, count, chances, buffer.codes, error, block.error_scale);
    return scale;
  }
  const RandomStream signs = group_stream(block.shared_key, first);
  float* rotated = buffer.rotated;
  for (size_t i = 0; i < padded; ++i) rotated[i] = buffer.sums[i];
  rotate(rotated, count, signs);
  Scale scale = scale_of(spec, rotated, count, largest_magnitude(rotated, count), stochastic);
  if (!is_finite(scale.step)) return scale;
  make_codes(coder, scale, rotated, count, chances, buffer.codes, nullptr, 0);
  if (stochastic) return scale;
  float* units = buffer.units;
  make_units(coder, buffer.codes, count, units);
  for (size_t i = count; i < padded; ++i) units[i] = 0;
  const float inverse = scale.inverse;
  const auto square = [=](size_t i) {
    const float part = rotated[i] * inverse;
    return part * part;
  };
  const auto unit_square = [=](size_t i) { return units[i] * units[i]; };
  const float along = sum_of(padded, [=](size_t i) { return rotated[i] * inverse * units[i]; });
  if (error == nullptr) {
    scale.step = step_to_project(scale.step, sum_of(padded, square), along);
    return scale;
  }
  scale.step = step_to_fit(scale.step, sum_of(padded, unit_square), along);
  rotate_back(units, count, signs, scale.step);
  Q7X2_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const float lost = (buffer.sums[i] - units[i]) * block.error_scale;
    error[i] = is_finite(lost) ? lost : error[i];
  }
  return scale;
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
      scale = encode_group(coder, spec, count, largest, block.first + begin, block, buffer,
                           block.error == nullptr ? nullptr : block.error + begin);
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
  switch (spec.kind) {
    case ValueKind::kFloat32:
      return encode_casts<Whole>(block, body);
    case ValueKind::kFloat16:
      return encode_casts<Float16>(block, body);
    case ValueKind::kBFloat16:
      return encode_casts<BFloat16>(block, body);
    case ValueKind::kFloat8E4M3:
      return encode_groups(Float8Steps<Float8E4M3FN>{}, spec, block, body);
    case ValueKind::kFloat8E5M2:
      return encode_groups(Float8Steps<Float8E5M2>{}, spec, block, body);
    case ValueKind::kUniform:
      if (spec.minmax) return encode_groups(AffineSteps{(1 << spec.bits) - 1}, spec, block, body);
      [[fallthrough]];
    case ValueKind::kQsgd:
    case ValueKind::kTernary:
      return encode_groups(SymmetricSteps{levels_of(spec.bits)}, spec, block, body);
    case ValueKind::kOneBit:
    case ValueKind::kSign:
      return encode_groups(SignStep{}, spec, block, body);
    case ValueKind::kSumInt:
      __builtin_unreachable();
  }
}

void Q7X2_DECODE_VALUES(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add) {
  switch (spec.kind) {
    case ValueKind::kFloat32:
      return decode_casts<Whole>(body, out, count, add);
    case ValueKind::kFloat16:
      return decode_casts<Float16>(body, out, count, add);
    case ValueKind::kBFloat16:
      return decode_casts<BFloat16>(body, out, count, add);
    case ValueKind::kFloat8E4M3:
      return decode_groups(Float8Steps<Float8E4M3FN>{}, spec, body, out, count, first, shared_key,
                           add);
    case ValueKind::kFloat8E5M2:
      return decode_groups(Float8Steps<Float8E5M2>{}, spec, body, out, count, first, shared_key,
                           add);
    case ValueKind::kUniform:
      if (spec.minmax) {
        return decode_groups(AffineSteps{(1 << spec.bits) - 1}, spec, body, out, count, first,
                             shared_key, add);
      }
      [[fallthrough]];
    case ValueKind::kQsgd:
    case ValueKind::kTernary:
      return decode_groups(SymmetricSteps{levels_of(spec.bits)}, spec, body, out, count, first,
                           shared_key, add);
    case ValueKind::kOneBit:
    case ValueKind::kSign:
      return decode_groups(SignStep{}, spec, body, out, count, first, shared_key, add);
    case ValueKind::kSumInt:
      __builtin_unreachable();
  }
}

}  // namespace q7x2
