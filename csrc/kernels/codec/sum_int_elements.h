// Integers that add (kernels/codec/sum_int.h), number by number, for CPUs and GPUs.
#pragma once

#include <cstdint>

#include "kernels/codec/codec_spec.h"
#include "kernels/codec/random.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {

/// The maximum of a group, from the bits of its largest magnitude.
Q7X2_ELEMENT float group_maximum(uint32_t largest) {
  return float_from_bits(largest >= kInfinityBits ? kNanBits : largest);
}

/// The least power of two that is not less than `value`, a normal number.
Q7X2_ELEMENT double power_of_two_from(double value) {
  const auto bits = __builtin_bit_cast(uint64_t, value);
  const uint64_t exponent = (bits >> 52) + ((bits & ((uint64_t{1} << 52) - 1)) != 0 ? 1 : 0);
  return __builtin_bit_cast(double, exponent << 52);
}

/// Converts the numbers of a group to integers, and sums of integers to numbers. fp32 represents
/// integers of 16 bits exactly, so its arithmetic is sufficient for them.
template <class Int>
class SumIntSteps {
 public:
  using Real = float;

  /// `maximum`: the group's.
  Q7X2_ELEMENT SumIntSteps(float maximum, int levels)
      : scale_(is_finite(maximum) ? scale_to(maximum, static_cast<float>(levels)) : no_scale()),
        levels_(levels) {}

  /// Adds `chance` and rounds down; 0.5 rounds to nearest. Requires a finite maximum.
  Q7X2_ELEMENT Int code(float value, float chance) const {
    const int biased =
        static_cast<int>(value * scale_.inverse + (static_cast<float>(levels_) + chance));
    const int code = biased - levels_;
    return static_cast<Int>(code > levels_ ? levels_ : code < -levels_ ? -levels_ : code);
  }
  Q7X2_ELEMENT float lost(float value, Int code) const {
    return value - static_cast<float>(code) * scale_.step;
  }
  /// NaN if the maximum is not finite.
  Q7X2_ELEMENT float value(Int sum, int divisor) const {
    return static_cast<float>(sum) * scale_.step / static_cast<float>(divisor);
  }

 private:
  Scale scale_;
  int levels_;
};

template <>
class SumIntSteps<int32_t> {
 public:
  Q7X2_ELEMENT SumIntSteps(float maximum, int levels) : levels_(levels) {
    if (!is_finite(maximum)) {
      step_ = float_from_bits(kNanBits);
    } else if (maximum >= kLeastMagnitude) {
      step_ = power_of_two_from(maximum / static_cast<double>(levels));
      inverse_ = 1 / step_;
    }
  }

  Q7X2_ELEMENT int32_t code(float value, float chance) const {
    const double steps = value * inverse_ + chance;
    const auto near = static_cast<int64_t>(steps);
    const int64_t code = near - (static_cast<double>(near) > steps ? 1 : 0);
    return static_cast<int32_t>(code > levels_ ? levels_ : code < -levels_ ? -levels_ : code);
  }
  Q7X2_ELEMENT float lost(float value, int32_t code) const {
    return static_cast<float>(value - code * step_);
  }
  Q7X2_ELEMENT float value(int32_t sum, int divisor) const {
    return static_cast<float>(sum * step_ / divisor);
  }

 private:
  double step_ = 0;
  double inverse_ = 0;
  int64_t levels_;
};

/// The random number that rounds element `index`, whose group begins at `begin`.
Q7X2_ELEMENT float sum_int_chance(const ValueSpec& spec, uint64_t rounding_key, uint64_t begin,
                                  uint64_t index) {
  return spec.stochastic
             ? random_unit(random_stream(rounding_key, begin), static_cast<uint32_t>(index))
             : 0.5F;
}

/// Calls `body` with an integer type of the spec's bits.
template <class Body>
inline void with_integers(const ValueSpec& spec, Body body) {
  switch (spec.bits) {
    case 8:
      return body(int8_t{});
    case 16:
      return body(int16_t{});
    default:
      return body(int32_t{});
  }
}

}  // namespace q7x2
