// The computation for one number, for CPUs and GPUs: a scale from the statistics of its group, a
// code from number and scale, a number from code and scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/codec_spec.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {

/// Sums over a group are computed as this many partial sums, element i in sum i % kLanes. They are
/// folded in halves: in the same order on every processor.
inline constexpr int kLanes = 16;

inline constexpr uint32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kNanBits = 0x7FC00000;
/// If all elements of a group are smaller than this, they count as zeros, because the inverse of a
/// scale must be finite.
inline constexpr float kLeastMagnitude = 0x1p-100F;

/// The scale of a group. The coder gets (number - least) * inverse, and a code stands for its unit
/// value * step + least.
struct Scale {
  float step = 0;
  float inverse = 0;
  float least = 0;
};

/// Bits of the magnitude: finite numbers keep their order, and infinities and NaNs are above them.
Q7X2_ELEMENT uint32_t magnitude_bits(float value) {
  return float_to_bits(value) & 0x7FFFFFFF;
}

/// Rounded to nearest on every processor.
Q7X2_ELEMENT float square_root(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return __builtin_sqrtf(value);
#endif
}

Q7X2_ELEMENT bool is_finite(float value) {
  return magnitude_bits(value) < kInfinityBits;
}

/// An integer with the same order as the numbers, and the inverse.
Q7X2_ELEMENT int32_t ordered(float value) {
  const auto bits = static_cast<int32_t>(float_to_bits(value));
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
Q7X2_ELEMENT float from_ordered(int32_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits ^ ((bits >> 31) & 0x7FFFFFFF)));
}

/// Number of groups; the last one may be shorter.
Q7X2_ELEMENT size_t num_groups(const ValueSpec& spec, size_t count) {
  return (count + spec.group - 1) / spec.group;
}

/// Number of fp32 numbers in a group's scale: the step, and with `minmax` the least.
Q7X2_ELEMENT size_t scales_of_group(const ValueSpec& spec) {
  return spec.minmax ? 2 : 1;
}

Q7X2_ELEMENT size_t scales_bytes(const ValueSpec& spec, size_t count) {
  return num_groups(spec, count) * scales_of_group(spec) * sizeof(float);
}

/// Codes represent -levels ... levels.
Q7X2_ELEMENT int levels_of(int bits) {
  return static_cast<int>((1U << (bits - 1)) - 1);
}

/// The scale with which the largest unit represents `magnitude`.
Q7X2_ELEMENT Scale scale_to(float magnitude, float largest_unit) {
  if (!(magnitude >= kLeastMagnitude)) return {};
  const float step = magnitude / largest_unit;
  // If the division rounded up at the end of the range, the largest number must stay finite.
  return {is_finite(step * largest_unit) ? step : float_from_bits(float_to_bits(step) - 1),
          largest_unit / magnitude, 0};
}

/// The scale of a group if fp32 cannot represent the numbers of its codes.
Q7X2_ELEMENT Scale no_scale() {
  return {float_from_bits(kNanBits), 0, 0};
}

/// If a number is above this, its code may decode to more than fp32 can represent.
inline constexpr float kLargestMagnitude = 0x1p126F;

Q7X2_ELEMENT Scale scale_between(float least, float most, int bits) {
  if (!(least > -kLargestMagnitude && most < kLargestMagnitude)) return no_scale();
  const float steps = static_cast<float>((1 << bits) - 1);
  const float range = most - least;
  if (!(range >= kLeastMagnitude)) return {0, 0, least};
  return {range / steps, steps / range, least};
}

// The coders. `chance` in [0, 1) rounds up if the remainder is more than 1 - chance; 0.5 rounds to
// nearest. A code stands for unit(code) * step + least.

/// The statistics that determine a group's scale, besides the largest magnitude.
enum class ScaleBy : uint8_t { kLargest, kSquares, kMean, kRange };

/// Equal steps around zero.
struct SymmetricSteps {
  static constexpr ScaleBy kScale = ScaleBy::kSquares;
  int levels;
  Q7X2_ELEMENT int code(float value, Scale scale, float chance) const {
    const int code =
        static_cast<int>(value * scale.inverse + (static_cast<float>(levels) + chance));
    const int bounded = code > 2 * levels ? 2 * levels : code;
    return bounded < 0 ? 0 : bounded;
  }
  Q7X2_ELEMENT float unit(int code) const { return static_cast<float>(code - levels); }
  Q7X2_ELEMENT float value(int code, Scale scale) const { return unit(code) * scale.step; }
  Q7X2_ELEMENT int zero() const { return levels; }
};

/// Equal steps from the least number to the largest.
struct AffineSteps {
  static constexpr ScaleBy kScale = ScaleBy::kRange;
  int most;
  Q7X2_ELEMENT int code(float value, Scale scale, float chance) const {
    const int code = static_cast<int>((value - scale.least) * scale.inverse + chance);
    return code > most ? most : code;
  }
  Q7X2_ELEMENT float unit(int code) const { return static_cast<float>(code); }
  Q7X2_ELEMENT float value(int code, Scale scale) const {
    return unit(code) * scale.step + scale.least;
  }
  Q7X2_ELEMENT int zero() const { return 0; }
};

/// An 8-bit float, scaled so that the largest number is the format's largest number.
template <class T>
struct Float8Steps {
  static constexpr ScaleBy kScale = ScaleBy::kLargest;
  Q7X2_ELEMENT int code(float value, Scale scale, float) const {
    return from_float<T>(value * scale.inverse).bits;
  }
  Q7X2_ELEMENT float unit(int code) const { return to_float(T{static_cast<uint8_t>(code)}); }
  Q7X2_ELEMENT float value(int code, Scale scale) const { return unit(code) * scale.step; }
  Q7X2_ELEMENT int zero() const { return 0; }
};

/// The sign. That of a zero is random; otherwise many zeros and ties would add up to a direction.
struct SignStep {
  static constexpr ScaleBy kScale = ScaleBy::kMean;
  Q7X2_ELEMENT int code(float value, Scale, float chance) const {
    return value > 0 || (value == 0 && chance >= 0.5F) ? 1 : 0;
  }
  Q7X2_ELEMENT float unit(int code) const { return static_cast<float>(2 * code - 1); }
  Q7X2_ELEMENT float value(int code, Scale scale) const { return unit(code) * scale.step; }
  Q7X2_ELEMENT int zero() const { return 1; }
};

// Scales that need more than the largest magnitude. Sums of huge numbers would overflow, and
// squares of tiny numbers vanish, so both are computed from multiples of the numbers.

/// The scale from the sum of all magnitudes, which are multiplied by kSumScale.
inline constexpr float kSumScale = 0x1p-10F;

Q7X2_ELEMENT Scale scale_to_mean(float sum, int count) {
  return scale_to(sum / static_cast<float>(count) * (1 / kSumScale), 1);
}

/// The scale from the sum of the squares of all numbers divided by the largest magnitude.
Q7X2_ELEMENT Scale scale_to_norm(float largest, float squares, float largest_unit) {
  const float norm = largest * square_root(squares);
  return norm < kLargestMagnitude ? scale_to(norm, largest_unit) : no_scale();
}

/// Rotated numbers are nearly normal. If the largest unit represents this many standard deviations,
/// and larger numbers are cut off, the angle between the encoded and the decoded vector is
/// smallest.
Q7X2_ELEMENT float clipped_deviations(int bits) {
  switch (bits) {
    case 2:
      return 1.2234F;
    case 3:
      return 1.9551F;
    case 4:
      return 2.4753F;
    case 6:
      return 3.2674F;
    default:
      return 3.9171F;
  }
}

Q7X2_ELEMENT Scale scale_to_clip(float largest, float squares, int count, int bits,
                                 float largest_unit) {
  const float deviation = largest * square_root(squares / static_cast<float>(count));
  const float clipped = deviation * clipped_deviations(bits);
  return scale_to(clipped < largest ? clipped : largest, largest_unit);
}

/// The step from the sums of (number / step)^2 and of number / step * unit: the projection of the
/// decoded vector on the encoded one has the right length, and so the mean is right (Vargaftik et
/// al., "EDEN", 2022).
Q7X2_ELEMENT float step_to_project(float step, float squares, float along) {
  return along > 0 ? step * (squares / along) : 0;
}
/// The step from the sums of unit^2 and of number / step * unit: the decoded vector has the least
/// error.
Q7X2_ELEMENT float step_to_fit(float step, float unit_squares, float along) {
  return along > 0 ? step * (along / unit_squares) : 0;
}

/// Rotated numbers are multiplied by this factor, so that their sums stay finite.
inline constexpr float kRotatedScale = 0x1p-5F;

/// The factor for the numbers of a piece before the transform.
Q7X2_ELEMENT float scale_into_rotation(size_t piece) {
  return kRotatedScale / square_root(static_cast<float>(piece));
}
/// The factor after the inverse transform.
Q7X2_ELEMENT float scale_out_of_rotation(size_t piece) {
  return (1 / kRotatedScale) / square_root(static_cast<float>(piece));
}

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
