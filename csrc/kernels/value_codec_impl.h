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
#include "kernels/half_vectors.h"
#include "kernels/pack.h"
#include "kernels/random.h"
#include "kernels/value_codec.h"
#include "kernels/value_elements.h"

#if defined(__clang__)
#define Q7X2_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define Q7X2_INDEPENDENT _Pragma("GCC ivdep")
#endif

#include "kernels/rotate.h"

namespace q7x2 {
namespace {

// The buffer's length, and that of the pieces in which casts go through it.
constexpr size_t kPiece = kLargestGroup;

struct Buffer {
  alignas(64) float sums[kPiece];
  alignas(64) float rotated[kPiece];
  alignas(64) float units[kPiece];  // or chances
  alignas(64) uint8_t codes[kPiece];
};

size_t round_up(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

void store_float(std::byte* at, float value) {
  __builtin_memcpy(at, &value, sizeof(value));
}

float load_float(const std::byte* at) {
  float value;
  __builtin_memcpy(&value, at, sizeof(value));
  return value;
}

// ------------------------------------------------------------------------------------- statistics

uint32_t largest_magnitude(const float* values, size_t count) {
  int32_t largest = 0;  // signed, for which every instruction set compares
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(magnitude_bits(values[i]));
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

/// sums[i] = values[i] + add[i]; returns the largest magnitude of them.
uint32_t load_sums(const float* values, const float* add, size_t count, float* sums) {
  int32_t largest = 0;
  if (add != nullptr) {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      sums[i] = values[i] + add[i];
      const auto bits = static_cast<int32_t>(magnitude_bits(sums[i]));
      largest = bits > largest ? bits : largest;
    }
  } else {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      sums[i] = values[i];
      const auto bits = static_cast<int32_t>(magnitude_bits(sums[i]));
      largest = bits > largest ? bits : largest;
    }
  }
  return static_cast<uint32_t>(largest);
}

/// The sum of term(0) ... term(count - 1) in the order that kLanes prescribes; `count` is a
/// multiple of kLanes.
template <class Term>
float sum_of(size_t count, Term term) {
  float lanes[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// The scale of a group whose largest magnitude is finite. Zeros follow the numbers up to a
/// multiple of kLanes.
Scale scale_of(const ValueSpec& spec, const float* values, size_t count, uint32_t largest_bits,
               bool stochastic) {
  const size_t padded = round_up(count, kLanes);
  const float largest = float_from_bits(largest_bits);
  if (spec.minmax) {
    int32_t least = ordered(values[0]);
    int32_t most = least;
    for (size_t i = 0; i < count; ++i) {
      const int32_t value = ordered(values[i]);
      least = value < least ? value : least;
      most = value > most ? value : most;
    }
    return scale_between(from_ordered(least), from_ordered(most), spec.bits);
  }
  const float inverse = scale_to(largest, 1).inverse;
  const auto magnitude = [=](size_t i) {
    return float_from_bits(magnitude_bits(values[i])) * kSumScale;
  };
  const auto square = [=](size_t i) {
    const float part = values[i] * inverse;
    return part * part;
  };
  const float most = largest_unit(spec);
  switch (spec.kind) {
    case ValueKind::kOneBit:
      return scale_to_mean(sum_of(padded, magnitude), static_cast<int>(count));
    case ValueKind::kQsgd:
      return scale_to_norm(largest, sum_of(padded, square), most);
    case ValueKind::kSign:
      return {1, 1, 0};
    case ValueKind::kUniform:
      if (spec.hadamard && !stochastic) {
        return scale_to_clip(largest, sum_of(padded, square), static_cast<int>(count), spec.bits,
                             most);
      }
      [[fallthrough]];
    default:
      return scale_to(largest, most);
  }
}

// ----------------------------------------------------------------------------------------- groups

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

// ------------------------------------------------------------------------------------------ casts

/// fp32 as it is: nothing is lost.
struct Whole {
  using Bits = uint32_t;
  Bits bits;
};

Q7X2_ELEMENT float to_float(Whole value) {
  return float_from_bits(value.bits);
}

/// A code of T, wherever in memory.
template <class T>
struct __attribute__((packed, may_alias)) CodeAt {
  typename T::Bits bits;
};

template <class T>
void narrow_all(const float* values, size_t count, std::byte* body) {
  auto* codes = reinterpret_cast<CodeAt<T>*>(body);
  size_t i = 0;
  if constexpr (std::is_same_v<T, Whole>) {
    __builtin_memcpy(body, values, count * sizeof(float));
    return;
  } else {
#if defined(Q7X2_HALF_VECTORS)
    if constexpr (std::is_same_v<T, Float16>) {
      for (; count - i >= kHalfLanes; i += kHalfLanes) {
        store(reinterpret_cast<Float16*>(body) + i, load(values + i));
      }
    }
#endif
    Q7X2_INDEPENDENT
    for (; i < count; ++i) codes[i].bits = from_float<T>(values[i]).bits;
  }
}

template <class T>
void widen_all(const std::byte* body, size_t count, float* values) {
  const auto* codes = reinterpret_cast<const CodeAt<T>*>(body);
  size_t i = 0;
#if defined(Q7X2_HALF_VECTORS)
  if constexpr (std::is_same_v<T, Float16>) {
    for (; count - i >= kHalfLanes; i += kHalfLanes) {
      store(values + i, load(reinterpret_cast<const Float16*>(body) + i));
    }
  }
#endif
  Q7X2_INDEPENDENT
  for (; i < count; ++i) values[i] = to_float(T{codes[i].bits});
}

template <class T>
void encode_casts(const ValueBlock& block, std::byte* body) {
  Buffer buffer;
  for (size_t begin = 0; begin < block.count; begin += kPiece) {
    const size_t count = smaller(kPiece, block.count - begin);
    std::byte* codes = body + begin * sizeof(T);
    load_sums(block.values + begin, block.add == nullptr ? nullptr : block.add + begin, count,
              buffer.sums);
    narrow_all<T>(buffer.sums, count, codes);
    if (block.error == nullptr) continue;
    widen_all<T>(codes, count, buffer.units);
    float* error = block.error + begin;
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      const float lost = (buffer.sums[i] - buffer.units[i]) * block.error_scale;
      error[i] = is_finite(lost) ? lost : error[i];
    }
  }
}

template <class T>
void decode_casts(const std::byte* body, float* out, size_t count, bool add) {
  if (!add) return widen_all<T>(body, count, out);
  Buffer buffer;
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t here = smaller(kPiece, count - begin);
    widen_all<T>(body + begin * sizeof(T), here, buffer.units);
    for (size_t i = 0; i < here; ++i) out[begin + i] += buffer.units[i];
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
