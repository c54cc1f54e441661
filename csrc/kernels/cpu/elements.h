// Floats of 16 and 8 bits: their bits, and their conversions from and to fp32.
//
// They have no branches, so that a compiler can vectorise loops over them, and no library calls, so
// that they also run on a GPU. They round to nearest even and agree with torch's c10 types on every
// code, including saturation and NaN. A NaN stays a NaN; its payload is not kept.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define Q7X2_ELEMENT __host__ __device__ __forceinline__
#else
// Always inlined, so that no copy compiled for one instruction set can be linked into code for
// another.
#define Q7X2_ELEMENT inline __attribute__((always_inline))
#endif

namespace q7x2 {

/// How a format uses the codes at the end of its range, and values beyond it.
enum class FloatRange {
  kIeee,    ///< infinities and NaNs in the highest exponent; overflow gives infinity
  kFinite,  ///< ("fn") one NaN code per sign, no infinity; overflow saturates
  kNoZero,  ///< ("fnuz") one NaN instead of negative zero, no infinity; overflow gives NaN
};

/// A sign bit, `exponent` bits with `bias`, and `mantissa` bits.
struct FloatFormat {
  int exponent;
  int mantissa;
  int bias;
  FloatRange range;
};

struct Float16 {
  using Bits = uint16_t;
  static constexpr FloatFormat kFormat = {5, 10, 15, FloatRange::kIeee};
  Bits bits;
};

/// The upper half of an fp32.
struct BFloat16 {
  using Bits = uint16_t;
  Bits bits;
};

struct Float8E4M3FN {
  using Bits = uint8_t;
  static constexpr FloatFormat kFormat = {4, 3, 7, FloatRange::kFinite};
  Bits bits;
};

struct Float8E4M3FNUZ {
  using Bits = uint8_t;
  static constexpr FloatFormat kFormat = {4, 3, 8, FloatRange::kNoZero};
  Bits bits;
};

struct Float8E5M2 {
  using Bits = uint8_t;
  static constexpr FloatFormat kFormat = {5, 2, 15, FloatRange::kIeee};
  Bits bits;
};

struct Float8E5M2FNUZ {
  using Bits = uint8_t;
  static constexpr FloatFormat kFormat = {5, 2, 16, FloatRange::kNoZero};
  Bits bits;
};

Q7X2_ELEMENT uint32_t float_to_bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
Q7X2_ELEMENT float float_from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Exact: every code is an fp32 value.
template <class T>
Q7X2_ELEMENT float to_float(T value) {
  constexpr FloatFormat kFormat = T::kFormat;
  constexpr int kMagnitudeBits = kFormat.exponent + kFormat.mantissa;
  constexpr int kShift = 23 - kFormat.mantissa;
  constexpr uint32_t kInfinity = 0x7F800000;

  const uint32_t code = value.bits;
  const uint32_t magnitude = code & ((1u << kMagnitudeBits) - 1);
  const uint32_t sign = (code >> kMagnitudeBits) << 31;
  const uint32_t shifted = magnitude << kShift;

  const uint32_t normal = shifted + (static_cast<uint32_t>(127 - kFormat.bias) << 23);
  // A subnormal is m * 2^(1 - bias): set m after a leading one, then subtract this one.
  constexpr uint32_t kOne = static_cast<uint32_t>(128 - kFormat.bias) << 23;
  const uint32_t subnormal = float_to_bits(float_from_bits(shifted + kOne) - float_from_bits(kOne));
  const uint32_t finite = magnitude < (1u << kFormat.mantissa) ? subnormal : normal;

  if constexpr (kFormat.range == FloatRange::kNoZero) {
    return float_from_bits(code == (1u << kMagnitudeBits) ? 0x7FC00000 : finite | sign);
  } else {
    // The first code that is not a number: all ones, but if there are infinities, zeros in the
    // mantissa.
    constexpr uint32_t kSpecial = kFormat.range == FloatRange::kIeee
                                      ? ((1u << kFormat.exponent) - 1) << kFormat.mantissa
                                      : (1u << kMagnitudeBits) - 1;
    return float_from_bits((magnitude >= kSpecial ? finite | kInfinity : finite) | sign);
  }
}

Q7X2_ELEMENT float to_float(BFloat16 value) {
  return float_from_bits(static_cast<uint32_t>(value.bits) << 16);
}

/// The nearest value of T, ties to even.
template <class T>
Q7X2_ELEMENT T from_float(float value) {
  constexpr FloatFormat kFormat = T::kFormat;
  constexpr int kMagnitudeBits = kFormat.exponent + kFormat.mantissa;
  constexpr int kShift = 23 - kFormat.mantissa;
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kFormat.bias) << 23;
  constexpr uint32_t kHalf = (1u << (kShift - 1)) - 1;

  const uint32_t bits = float_to_bits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t sign = (bits >> 31) << kMagnitudeBits;

  const uint32_t normal = (magnitude - kRebias + kHalf + ((magnitude >> kShift) & 1)) >> kShift;
  // Added to a power of two whose last digit is the smallest subnormal, the adder itself rounds.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 - kFormat.bias + kShift + 1) << 23;
  const uint32_t subnormal =
      float_to_bits(float_from_bits(magnitude) + float_from_bits(kMagic)) - kMagic;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kFormat.bias) << 23;
  const uint32_t rounded = magnitude < kSmallestNormal ? subnormal : normal;

  uint32_t code = 0;
  if constexpr (kFormat.range == FloatRange::kIeee) {
    constexpr uint32_t kInfinityCode = ((1u << kFormat.exponent) - 1) << kFormat.mantissa;
    // The 16-bit NaN is the quiet NaN that hardware makes; the 8-bit NaN has all bits set.
    constexpr uint32_t kNanCode =
        kInfinityCode | (kFormat.mantissa == 10 ? 1u << 9 : (1u << kFormat.mantissa) - 1);
    constexpr uint32_t kOverflow =
        static_cast<uint32_t>((1 << kFormat.exponent) - 1 + 127 - kFormat.bias) << 23;
    const uint32_t bounded = magnitude >= kOverflow ? kInfinityCode : rounded;
    code = (magnitude > kInfinity ? kNanCode : bounded) | sign;
  } else if constexpr (kFormat.range == FloatRange::kFinite) {
    constexpr uint32_t kNanCode = (1u << kMagnitudeBits) - 1;
    constexpr uint32_t kLargest = kNanCode - 1;
    // All values from the one that the NaN code would have as a number saturate.
    constexpr uint32_t kOverflow = (kNanCode << kShift) + kRebias;
    const uint32_t bounded = magnitude >= kOverflow || rounded > kLargest ? kLargest : rounded;
    code = (magnitude > kInfinity ? kNanCode : bounded) | sign;
  } else {
    constexpr uint32_t kNanCode = 1u << kMagnitudeBits;
    constexpr uint32_t kOverflow =
        static_cast<uint32_t>((1 << kFormat.exponent) + 127 - kFormat.bias) << 23;
    const uint32_t bounded = magnitude >= kOverflow ? kNanCode : rounded | sign;
    code = rounded == 0 ? 0 : bounded;
  }
  return T{static_cast<typename T::Bits>(code)};
}

template <>
Q7X2_ELEMENT BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded)};
}

}  // namespace q7x2
