// The 16- and 8-bit floats against a slow reference made of real arithmetic.
#include "kernels/cpu/elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// One format, with the codes that torch gives to what is no number.
struct Reference {
  FloatFormat format;
  uint32_t nan_code;
  bool nan_keeps_sign;

  int magnitude_bits() const { return format.exponent + format.mantissa; }
  uint32_t sign_bit() const { return 1u << magnitude_bits(); }

  double decode(uint32_t code) const {
    const uint32_t magnitude = code & (sign_bit() - 1);
    const int exponent = static_cast<int>(magnitude >> format.mantissa);
    const uint32_t fraction = magnitude & ((1u << format.mantissa) - 1);
    if (format.range == FloatRange::kNoZero && code == sign_bit()) return kNan;
    if (format.range == FloatRange::kFinite && magnitude == sign_bit() - 1) return kNan;
    const double sign = (code & sign_bit()) != 0 ? -1 : 1;
    if (format.range == FloatRange::kIeee && exponent == (1 << format.exponent) - 1) {
      return fraction == 0 ? sign * kInf : kNan;
    }
    const double one = exponent == 0 ? 0 : 1;
    return sign * std::ldexp(one + std::ldexp(fraction, -format.mantissa),
                             std::max(exponent, 1) - format.bias);
  }

  uint32_t encode(float value) const {
    const uint32_t sign = std::signbit(value) ? sign_bit() : 0;
    if (std::isnan(value)) return nan_code | (nan_keeps_sign ? sign : 0);
    double magnitude = std::fabs(static_cast<double>(value));
    if (!std::isinf(magnitude) && magnitude != 0) {
      const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias);
      const double unit = std::ldexp(1, exponent - format.mantissa);
      magnitude = std::nearbyint(magnitude / unit) * unit;
    }
    const auto last = std::prev(codes.end());
    if (magnitude > last->first) {
      switch (format.range) {
        case FloatRange::kIeee:
          return (last->second + 1) | sign;
        case FloatRange::kFinite:
          return last->second | sign;
        case FloatRange::kNoZero:
          return nan_code;
      }
    }
    const uint32_t code = codes.at(magnitude);
    return format.range == FloatRange::kNoZero && code == 0 ? 0 : code | sign;
  }

  /// Codes of the finite values that are not negative.
  std::map<double, uint32_t> codes;

  Reference(FloatFormat format_in, uint32_t nan_code_in, bool nan_keeps_sign_in)
      : format(format_in), nan_code(nan_code_in), nan_keeps_sign(nan_keeps_sign_in) {
    for (uint32_t code = 0; code < sign_bit(); ++code) {
      if (std::isfinite(decode(code))) codes[decode(code)] = code;
    }
  }
};

template <class T>
Reference reference();
template <>
Reference reference<Float16>() {
  return {Float16::kFormat, 0x7E00, true};
}
template <>
Reference reference<BFloat16>() {
  return {{8, 7, 127, FloatRange::kIeee}, 0x7FC0, false};
}
template <>
Reference reference<Float8E4M3FN>() {
  return {Float8E4M3FN::kFormat, 0x7F, true};
}
template <>
Reference reference<Float8E4M3FNUZ>() {
  return {Float8E4M3FNUZ::kFormat, 0x80, false};
}
template <>
Reference reference<Float8E5M2>() {
  return {Float8E5M2::kFormat, 0x7F, true};
}
template <>
Reference reference<Float8E5M2FNUZ>() {
  return {Float8E5M2FNUZ::kFormat, 0x80, false};
}

template <class T>
class ElementsTest : public testing::Test {
 protected:
  static constexpr uint32_t kCodes = 1u << (8 * sizeof(T));

  static T element(uint32_t code) { return {static_cast<typename T::Bits>(code)}; }

  void expect_rounds_like_reference(float value) const {
    ASSERT_EQ(from_float<T>(value).bits, reference_.encode(value))
        << "of " << value << ", bits " << std::hex << float_to_bits(value);
  }

  const Reference reference_ = reference<T>();
};

using Elements =
    testing::Types<Float16, BFloat16, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ>;

struct ElementName {
  template <class T>
  static std::string GetName(int index) {
    static const char* const kNames[] = {"Float16",        "BFloat16",   "Float8E4M3FN",
                                         "Float8E4M3FNUZ", "Float8E5M2", "Float8E5M2FNUZ"};
    return kNames[index];
  }
};
TYPED_TEST_SUITE(ElementsTest, Elements, ElementName);

TYPED_TEST(ElementsTest, EveryCodeHasItsValue) {
  for (uint32_t code = 0; code < this->kCodes; ++code) {
    const double expected = this->reference_.decode(code);
    const float actual = to_float(this->element(code));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << code;
    } else {
      ASSERT_EQ(float_to_bits(actual), float_to_bits(static_cast<float>(expected))) << code;
    }
  }
}

TYPED_TEST(ElementsTest, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code < this->kCodes; ++code) {
    const float value = to_float(this->element(code));
    const uint32_t back = from_float<TypeParam>(value).bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(this->element(back)))) << code;
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

TYPED_TEST(ElementsTest, RoundsToNearestEvenBetweenNeighbours) {
  const auto& codes = this->reference_.codes;
  for (auto low = codes.begin(), high = std::next(low); high != codes.end(); ++low, ++high) {
    const float middle = static_cast<float>((low->first + high->first) / 2);
    for (const float value : {middle, std::nextafter(middle, 0.0f),
                              std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
      this->expect_rounds_like_reference(value);
      this->expect_rounds_like_reference(-value);
    }
  }
}

TYPED_TEST(ElementsTest, RoundsTheEndsOfTheRange) {
  const double largest = std::prev(this->reference_.codes.end())->first;
  const double below = std::prev(this->reference_.codes.end(), 2)->first;
  // Half a step above the largest value is where IEEE formats go to infinity.
  const float edge = static_cast<float>(largest + (largest - below) / 2);
  const float max = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value :
       {static_cast<float>(largest), edge, std::nextafter(edge, 0.0f),
        std::nextafter(edge, infinity), max, infinity, 0.0f, std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::quiet_NaN()}) {
    this->expect_rounds_like_reference(value);
    this->expect_rounds_like_reference(-value);
  }
}

TYPED_TEST(ElementsTest, RoundsAnyBits) {
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) {
    this->expect_rounds_like_reference(float_from_bits(static_cast<uint32_t>(random())));
  }
}

}  // namespace
}  // namespace q7x2
