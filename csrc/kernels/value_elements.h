// What becomes of one number, for CPUs and GPUs: a scale from the statistics of its group, a code
// from number and scale, a number from code and scale.
#pragma once

#include <cstdint>

#include "kernels/codec_spec.h"
#include "kernels/elements.h"

namespace q7x2 {

/// Sums over a group run in so many partial sums, element i in i % kLanes, which are folded in
/// halves: one order on every processor.
inline constexpr int kLanes = 16;

inline constexpr uint32_t kInfinityBits = 0x7F800000;
/// Groups that are smaller than this in all their elements are taken for zeros: the inverse of a
/// scale must be finite.
inline constexpr float kLeastMagnitude = 0x1p-100F;

/// The scale of a group. A number is coded from (number - least) * inverse, and a code stands for
/// its unit value * step + least.
struct Scale {
  float step = 0;
  float inverse = 0;
  float least = 0;
};

/// Bits of the magnitude: of finite numbers in the order of the numbers, infinities and NaNs above.
Q7X2_ELEMENT uint32_t magnitude_bits(float value) {
  return float_to_bits(value) & 0x7FFFFFFF;
}

/// Codes stand for -levels ... levels.
Q7X2_ELEMENT int levels_of(int bits) {
  return (1 << (bits - 1)) - 1;
}

Q7X2_ELEMENT Scale scale_to(float magnitude, float largest_unit) {
  if (!(magnitude >= kLeastMagnitude)) return {};
  return {magnitude / largest_unit, largest_unit / magnitude, 0};
}

Q7X2_ELEMENT Scale scale_between(float least, float most, int bits) {
  const float steps = static_cast<float>((1 << bits) - 1);
  const float range = most - least;
  if (!(range >= kLeastMagnitude)) return {0, 0, least};
  return {range / steps, steps / range, least};
}

// The coders. `chance` in [0, 1) rounds up where the rest is more than 1 - chance: 0.5 is to the
// nearest.

/// Equal steps around zero.
struct SymmetricSteps {
  int levels;
  Q7X2_ELEMENT uint8_t code(float value, Scale scale, float chance) const {
    const float offset = static_cast<float>(levels) + chance;
    const int code = static_cast<int>(value * scale.inverse + offset);
    return static_cast<uint8_t>(code > 2 * levels ? 2 * levels : code);
  }
  Q7X2_ELEMENT float unit(uint8_t code) const {
    return static_cast<float>(static_cast<int>(code) - levels);
  }
  Q7X2_ELEMENT float value(uint8_t code, Scale scale) const { return unit(code) * scale.step; }
  Q7X2_ELEMENT uint8_t zero() const { return static_cast<uint8_t>(levels); }
};

/// Equal steps from the least number to the largest.
struct AffineSteps {
  int most;
  Q7X2_ELEMENT uint8_t code(float value, Scale scale, float chance) const {
    const int code = static_cast<int>((value - scale.least) * scale.inverse + chance);
    return static_cast<uint8_t>(code > most ? most : code);
  }
  Q7X2_ELEMENT float unit(uint8_t code) const { return static_cast<float>(static_cast<int>(code)); }
  Q7X2_ELEMENT float value(uint8_t code, Scale scale) const {
    return unit(code) * scale.step + scale.least;
  }
  Q7X2_ELEMENT uint8_t zero() const { return 0; }
};

/// An 8-bit float, scaled so that the largest number is the format's largest.
template <class T>
struct Float8Steps {
  Q7X2_ELEMENT uint8_t code(float value, Scale scale, float) const {
    return from_float<T>(value * scale.inverse).bits;
  }
  Q7X2_ELEMENT float unit(uint8_t code) const { return to_float(T{code}); }
  Q7X2_ELEMENT float value(uint8_t code, Scale scale) const { return unit(code) * scale.step; }
  Q7X2_ELEMENT uint8_t zero() const { return 0; }
};

/// The sign; zeros count as positive, whatever theirs.
struct SignStep {
  Q7X2_ELEMENT uint8_t code(float value, Scale, float) const { return value >= 0 ? 1 : 0; }
  Q7X2_ELEMENT float unit(uint8_t code) const {
    return static_cast<float>(2 * static_cast<int>(code) - 1);
  }
  Q7X2_ELEMENT float value(uint8_t code, Scale scale) const { return unit(code) * scale.step; }
  Q7X2_ELEMENT uint8_t zero() const { return 1; }
};

/// The largest unit value of a kind's codes.
Q7X2_ELEMENT float largest_unit(const ValueSpec& spec) {
  switch (spec.kind) {
    case ValueKind::kFloat8E4M3:
      return 448;
    case ValueKind::kFloat8E5M2:
      return 57344;
    case ValueKind::kUniform:
    case ValueKind::kQsgd:
      return static_cast<float>(levels_of(spec.bits));
    default:
      return 1;
  }
}

}  // namespace q7x2
