// What codecs lose, against the formulas of docs/codecs.md: on normal numbers and on numbers with a
// heavy tail, over 1,000 seeds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/codec.h"

namespace q7x2 {
namespace {

constexpr int kSeeds = 1000;

struct Statistics {
  double count = 0;
  double largest = 0;
  double sum = 0;  // of magnitudes
  double squares = 0;
  double range = 0;

  explicit Statistics(const std::vector<float>& values) {
    count = static_cast<double>(values.size());
    for (const float value : values) {
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
      sum += std::fabs(static_cast<double>(value));
      squares += static_cast<double>(value) * value;
    }
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    range = static_cast<double>(*most) - *least;
  }
};

double sum_over(const std::vector<float>& values, const std::function<double(double)>& term) {
  double sum = 0;
  for (const float value : values) sum += term(std::fabs(static_cast<double>(value)));
  return sum;
}

double square(double value) {
  return value * value;
}

/// Of a rotated group of any numbers, in terms of its length: those of normal numbers.
double rotated_bound(const ValueSpec& spec, double count) {
  const double largest = std::sqrt(2 * std::log(2 * count));  // of so many, on average less
  const double levels = (1 << (spec.bits - 1)) - 1;
  switch (spec.kind) {
    case ValueKind::kOneBit:
      return std::numbers::pi / 2 - 1;
    case ValueKind::kFloat8E4M3:
      return square(0x1p-4) / (1 - square(0x1p-4));
    case ValueKind::kTernary:
      return largest * std::sqrt(2 / std::numbers::pi) - 1;
    case ValueKind::kUniform:
      if (spec.stochastic) return square(largest / levels) / 4;
      switch (spec.bits) {
        case 2:
          return square(0.4846);
        case 3:
          return square(0.2218);
        case 4:
          return square(0.1143);
        case 6:
          return square(0.0328);
        default:
          return square(0.0094);
      }
    default:
      ADD_FAILURE() << "no formula";
      return 0;
  }
}

/// The formulas of docs/codecs.md: |v - C(v)|^2 of one group at most, or as expected.
double bound(const ValueSpec& spec, const std::vector<float>& values) {
  const Statistics of(values);
  const double levels = std::exp2(spec.bits - 1) - 1;
  const double steps = std::exp2(spec.bits) - 1;
  const auto nearest = [&](double step) {
    return sum_over(values, [=](double v) { return square(std::min(v, step / 2)); });
  };
  const auto stochastic = [&](double step) {
    return sum_over(values, [=](double v) { return std::min(v * step, step * step / 4); });
  };
  const auto floating = [&](double relative, double absolute) {
    return sum_over(values, [=](double v) { return square(std::max(relative * v, absolute)); });
  };
  if (spec.hadamard) return of.squares * rotated_bound(spec, of.count);
  switch (spec.kind) {
    case ValueKind::kFloat32:
      return 0;
    case ValueKind::kFloat16:
      return floating(0x1p-11, 0x1p-25);
    case ValueKind::kBFloat16:
      return floating(0x1p-8, 0);
    case ValueKind::kFloat8E4M3:
      return floating(0x1p-4, of.largest / 448 * 0x1p-10);
    case ValueKind::kFloat8E5M2:
      return floating(0x1p-3, of.largest / 57344 * 0x1p-17);
    case ValueKind::kUniform:
      if (spec.minmax) return of.count * square(of.range / steps) / 4;
      return spec.stochastic ? stochastic(of.largest / levels) : nearest(of.largest / levels);
    case ValueKind::kQsgd:
      return stochastic(std::sqrt(of.squares) / levels);
    case ValueKind::kTernary:
      return of.sum * of.largest - of.squares;
    case ValueKind::kOneBit:
      return of.squares - of.sum * of.sum / of.count;
    case ValueKind::kSign:
      return of.squares - 2 * of.sum + of.count;
    case ValueKind::kSumInt:
      break;
  }
  ADD_FAILURE() << "no formula";
  return 0;
}

struct Case {
  std::string codec;
  /// How much of the bound is used at least, so that the formulas say something.
  double tight;
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.codec;
}

class CodecError : public testing::TestWithParam<Case> {};

std::string test_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.codec;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Names, CodecError,
    testing::Values(Case{"fp32", 0}, Case{"fp16", 0.1}, Case{"bf16", 0.1}, Case{"fp8_e4m3", 0.1},
                    Case{"fp8_e5m2", 0.1}, Case{"int8", 0.2}, Case{"int6", 0.2}, Case{"int4", 0.2},
                    Case{"int3", 0.2}, Case{"int2", 0.2}, Case{"int4:g=64", 0.2},
                    Case{"int8:minmax", 0.2}, Case{"int4:minmax:sr", 0.2}, Case{"int8:sr", 0.3},
                    Case{"int4:sr", 0.3}, Case{"int2:sr", 0.3}, Case{"qsgd", 0.3},
                    Case{"qsgd:bits=8", 0.3}, Case{"ternary", 0.95}, Case{"onebit", 0.99},
                    Case{"sign", 0.99}, Case{"hadamard+int8", 0.3}, Case{"hadamard+int6", 0.5},
                    Case{"hadamard+int4", 0.5}, Case{"hadamard+int3", 0.5},
                    Case{"hadamard+int2", 0.5}, Case{"hadamard+onebit", 0.5},
                    Case{"hadamard+fp8_e4m3", 0.1}, Case{"hadamard+ternary", 0.3},
                    Case{"hadamard+int4:sr", 0.1}),
    test_name);

TEST_P(CodecError, IsWithinItsFormula) {
  const auto codec = Codec::make(GetParam().codec);
  const ValueSpec& spec = codec->spec().value;
  const size_t count = spec.group == 0 ? 512 : spec.group;
  const bool on_average = spec.stochastic || spec.hadamard;
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(3);
  for (const bool tail : {false, true}) {
    double lost_of_all = 0;
    double bound_of_all = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      std::mt19937_64 random(seed);
      std::vector<float> values(count);
      for (float& value : values) value = tail ? heavy(random) : normal(random);
      const CodecKeys keys = {seed, seed + 1};
      std::vector<std::byte> message(codec->max_bytes(count));
      message.resize(
          codec->encode({.values = values.data(), .count = count, .keys = keys}, message.data()));
      std::vector<float> decoded(count);
      codec->decode(message, decoded.data(), count, 0, keys);
      double lost = 0;
      for (size_t i = 0; i < count; ++i) {
        lost += square(static_cast<double>(values[i]) - decoded[i]);
      }
      const double most = bound(spec, values);
      // What fp32 arithmetic adds is a few parts in 2^24 of the largest number.
      if (!on_average) {
        ASSERT_LE(lost, most * (1 + 1e-4)) << "seed " << seed << (tail ? ", heavy tail" : "");
      }
      lost_of_all += lost / Statistics(values).squares;
      bound_of_all += most / Statistics(values).squares;
    }
    EXPECT_LE(lost_of_all, bound_of_all * 1.02) << (tail ? "heavy tail" : "normal");
    if (!tail) {
      EXPECT_GE(lost_of_all, bound_of_all * GetParam().tight);
      EXPECT_NEAR(std::sqrt(lost_of_all / kSeeds), codec->normal_error(),
                  0.15 * codec->normal_error());
    }
  }
}

}  // namespace
}  // namespace q7x2
