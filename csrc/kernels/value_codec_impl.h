// The value stage, compiled once for each instruction set.
//
// A value_codec_<isa>.cpp defines Q7X2_ENCODE_VALUES and Q7X2_DECODE_VALUES, the names of its entry
// points, and includes this file. All here has internal linkage, and nothing comes from the
// standard library but types; see reduce_impl.h.
//
// A group passes through a buffer that stays in the L1 cache: sum of value and error, statistics,
// codes, packed codes, new error. So memory is read and written once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/pack.h"
#include "kernels/random.h"
#include "kernels/value_codec.h"
#include "kernels/value_elements.h"

#if defined(__clang__)
#define Q7X2_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define Q7X2_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace q7x2 {
namespace {

// The buffer's length, and that of the pieces in which casts go through it.
constexpr size_t kPiece = kLargestGroup;

struct Buffer {
  alignas(64) float values[kPiece];
  alignas(64) float units[kPiece];
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
// All over a multiple of kLanes elements, the last of which are zeros.

uint32_t largest_magnitude(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

float fold_lanes(float* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

float sum_of_magnitudes(const float* values, size_t count) {
  float lanes[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] += float_from_bits(magnitude_bits(values[i + j]));
    }
  }
  return fold_lanes(lanes);
}

float dot(const float* a, const float* b, size_t count) {
  float lanes[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  return fold_lanes(lanes);
}

// --------------------------------------------------------------------------------------- rotation
// A randomised Hadamard rotation: random signs, then the fast Walsh-Hadamard transform, scaled to
// keep lengths. A group that is no power of two is rotated in pieces that are, the largest first.

void walsh_hadamard(float* values, size_t count) {
  for (size_t stride = count / 2; stride > 0; stride /= 2) {
    for (size_t begin = 0; begin < count; begin += 2 * stride) {
      float* a = values + begin;
      float* b = a + stride;
      Q7X2_INDEPENDENT
      for (size_t i = 0; i < stride; ++i) {
        const float sum = a[i] + b[i];
        b[i] = a[i] - b[i];
        a[i] = sum;
      }
    }
  }
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(count));
  for (size_t i = 0; i < count; ++i) values[i] *= scale;
}

void flip_signs(float* values, size_t count, uint64_t first, uint64_t key) {
  const RandomStream stream = random_stream(key, first);
  const auto counter = static_cast<uint32_t>(first);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t sign = random_bits(stream, counter + static_cast<uint32_t>(i)) & 0x80000000u;
    values[i] = float_from_bits(float_to_bits(values[i]) ^ sign);
  }
}

void transform_pieces(float* values, size_t count) {
  for (size_t piece = kPiece; count > 0; piece /= 2) {
    if (piece > count) continue;
    walsh_hadamard(values, piece);
    values += piece;
    count -= piece;
  }
}

void rotate(float* values, size_t count, uint64_t first, uint64_t key) {
  flip_signs(values, count, first, key);
  transform_pieces(values, count);
}

void rotate_back(float* values, size_t count, uint64_t first, uint64_t key) {
  transform_pieces(values, count);
  flip_signs(values, count, first, key);
}

// ----------------------------------------------------------------------------------------- groups

template <class Coder>
void make_codes(const Coder& coder, Scale scale, const float* values, size_t count,
                const ValueSpec& spec, const ValueBlock& block, uint64_t first, uint8_t* codes) {
  if (spec.stochastic && block.error == nullptr) {
    const RandomStream stream = random_stream(block.rounding_key, first);
    const auto counter = static_cast<uint32_t>(first);
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      codes[i] =
          coder.code(values[i], scale, random_unit(stream, counter + static_cast<uint32_t>(i)));
    }
  } else {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) codes[i] = coder.code(values[i], scale, 0.5F);
  }
}

/// The scale of a group whose largest magnitude is finite.
Scale scale_of(const ValueSpec& spec, const float* values, size_t count, uint32_t largest) {
  const size_t padded = round_up(count, kLanes);
  if (spec.minmax) {
    float least = values[0];
    float most = values[0];
    for (size_t i = 0; i < count; ++i) {
      least = values[i] < least ? values[i] : least;
      most = values[i] > most ? values[i] : most;
    }
    return scale_between(least, most, spec.bits);
  }
  switch (spec.kind) {
    case ValueKind::kOneBit:
      return scale_to(sum_of_magnitudes(values, padded) / static_cast<float>(count), 1);
    case ValueKind::kQsgd:
      return scale_to(__builtin_sqrtf(dot(values, values, padded)), largest_unit(spec));
    case ValueKind::kSign:
      return {1, 1, 0};
    default:
      return scale_to(float_from_bits(largest), largest_unit(spec));
  }
}

size_t scales_bytes(const ValueSpec& spec, size_t count) {
  const size_t groups = (count + spec.group - 1) / spec.group;
  return groups * (spec.minmax ? 2 : 1) * sizeof(float);
}

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
void encode_groups(const Coder& coder, const ValueSpec& spec, const ValueBlock& block,
                   std::byte* body) {
  Buffer buffer;
  const size_t length = spec.group;
  std::byte* packed = body + scales_bytes(spec, block.count);
  for (size_t begin = 0, group = 0; begin < block.count; begin += length, ++group) {
    const size_t count = smaller(length, block.count - begin);
    const size_t coded = round_up(count, 8);
    const uint64_t first = block.first + begin;
    const float* values = block.values + begin;
    float* sums = buffer.values;
    if (block.add != nullptr) {
      const float* add = block.add + begin;
      for (size_t i = 0; i < count; ++i) sums[i] = values[i] + add[i];
    } else {
      for (size_t i = 0; i < count; ++i) sums[i] = values[i];
    }
    for (size_t i = count; i < round_up(count, kLanes); ++i) sums[i] = 0;
    if (spec.hadamard) rotate(sums, count, first, block.shared_key);
    const uint32_t largest = largest_magnitude(sums, count);
    if (largest >= kInfinityBits) {
      store_scale(spec, body, group, float_from_bits(0x7FC00000), 0);
      for (size_t i = 0; i < coded; ++i) buffer.codes[i] = coder.zero();
      pack(buffer.codes, spec.bits, coded, reinterpret_cast<uint8_t*>(packed));
      packed += coded * spec.bits / 8;
      continue;
    }
    Scale scale = scale_of(spec, sums, count, largest);
    make_codes(coder, scale, sums, count, spec, block, first, buffer.codes);
    for (size_t i = count; i < coded; ++i) buffer.codes[i] = coder.zero();
    if (spec.hadamard && (!spec.stochastic || block.error != nullptr)) {
      // Without errors kept: what is decoded has the right projection on what was encoded, so that
      // it is right on average (Vargaftik et al., "EDEN", 2022). With: it is as near as can be.
      for (size_t i = 0; i < count; ++i) buffer.units[i] = coder.unit(buffer.codes[i]);
      for (size_t i = count; i < round_up(count, kLanes); ++i) buffer.units[i] = 0;
      const size_t padded = round_up(count, kLanes);
      const float along = dot(sums, buffer.units, padded);
      if (along <= 0) {
        scale.step = 0;
      } else if (block.error == nullptr) {
        scale.step = dot(sums, sums, padded) / along;
      } else {
        scale.step = along / dot(buffer.units, buffer.units, padded);
      }
    }
    store_scale(spec, body, group, scale.step, scale.least);
    pack(buffer.codes, spec.bits, coded, reinterpret_cast<uint8_t*>(packed));
    packed += coded * spec.bits / 8;
    if (block.error == nullptr) continue;
    float* error = block.error + begin;
    if (spec.hadamard) {
      for (size_t i = 0; i < count; ++i) sums[i] -= coder.value(buffer.codes[i], scale);
      rotate_back(sums, count, first, block.shared_key);
      for (size_t i = 0; i < count; ++i) error[i] = sums[i] * block.error_scale;
    } else {
      for (size_t i = 0; i < count; ++i) {
        error[i] = (sums[i] - coder.value(buffer.codes[i], scale)) * block.error_scale;
      }
    }
  }
}

template <class Coder>
void decode_groups(const Coder& coder, const ValueSpec& spec, const std::byte* body, float* out,
                   size_t count, uint64_t first, uint64_t shared_key, bool add) {
  Buffer buffer;
  const size_t length = spec.group;
  const std::byte* packed = body + scales_bytes(spec, count);
  for (size_t begin = 0, group = 0; begin < count; begin += length, ++group) {
    const size_t here = smaller(length, count - begin);
    const size_t coded = round_up(here, 8);
    unpack(reinterpret_cast<const uint8_t*>(packed), spec.bits, coded, buffer.codes);
    packed += coded * spec.bits / 8;
    const Scale scale = load_scale(spec, body, group);
    float* target = out + begin;
    if (spec.hadamard) {
      for (size_t i = 0; i < here; ++i) buffer.values[i] = coder.value(buffer.codes[i], scale);
      rotate_back(buffer.values, here, first + begin, shared_key);
      if (add) {
        for (size_t i = 0; i < here; ++i) target[i] += buffer.values[i];
      } else {
        for (size_t i = 0; i < here; ++i) target[i] = buffer.values[i];
      }
    } else if (add) {
      for (size_t i = 0; i < here; ++i) target[i] += coder.value(buffer.codes[i], scale);
    } else {
      for (size_t i = 0; i < here; ++i) target[i] = coder.value(buffer.codes[i], scale);
    }
  }
}

// ------------------------------------------------------------------------------------------ casts

template <class T>
void encode_casts(const ValueBlock& block, std::byte* body) {
  using Bits = typename T::Bits;
  auto* codes = reinterpret_cast<Bits*>(body);
  Buffer buffer;
  for (size_t begin = 0; begin < block.count; begin += kPiece) {
    const size_t count = smaller(kPiece, block.count - begin);
    const float* values = block.values + begin;
    float* sums = buffer.values;
    if (block.add != nullptr) {
      const float* add = block.add + begin;
      for (size_t i = 0; i < count; ++i) sums[i] = values[i] + add[i];
    } else {
      for (size_t i = 0; i < count; ++i) sums[i] = values[i];
    }
    Bits* out = codes + begin;
    for (size_t i = 0; i < count; ++i) out[i] = from_float<T>(sums[i]).bits;
    if (block.error == nullptr) continue;
    float* error = block.error + begin;
    for (size_t i = 0; i < count; ++i) {
      const float lost = (sums[i] - to_float(T{out[i]})) * block.error_scale;
      const bool is_finite = magnitude_bits(lost) < kInfinityBits;
      error[i] = is_finite ? lost : error[i];
    }
  }
}

template <class T>
void decode_casts(const std::byte* body, float* out, size_t count, bool add) {
  const auto* codes = reinterpret_cast<const typename T::Bits*>(body);
  if (add) {
    for (size_t i = 0; i < count; ++i) out[i] += to_float(T{codes[i]});
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = to_float(T{codes[i]});
  }
}

/// fp32 as it is: nothing is lost.
struct Whole {
  using Bits = uint32_t;
  Bits bits;
};

Q7X2_ELEMENT float to_float(Whole value) {
  return float_from_bits(value.bits);
}

void encode_whole(const ValueBlock& block, std::byte* body) {
  auto* out = reinterpret_cast<float*>(body);
  for (size_t i = 0; i < block.count; ++i) {
    out[i] = block.add != nullptr ? block.values[i] + block.add[i] : block.values[i];
  }
  if (block.error == nullptr) return;
  for (size_t i = 0; i < block.count; ++i) {
    const bool is_finite = magnitude_bits(out[i]) < kInfinityBits;
    block.error[i] = is_finite ? 0 : block.error[i];
  }
}

}  // namespace

void Q7X2_ENCODE_VALUES(const ValueSpec& spec, const ValueBlock& block, std::byte* body) {
  switch (spec.kind) {
    case ValueKind::kFloat32:
    case ValueKind::kSumInt:
      return encode_whole(block, body);
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
  }
}

void Q7X2_DECODE_VALUES(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add) {
  switch (spec.kind) {
    case ValueKind::kFloat32:
    case ValueKind::kSumInt:
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
  }
}

}  // namespace q7x2
