// Codecs at the ends of the range: what is not finite, zeros, the smallest and the largest numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {
namespace {

using test::decode;
using test::distance;
using test::encode;
using test::is_cast;
using test::kInf;
using test::kNan;
using test::norm;
using test::normal;
using test::round_trip;
using test::same_bits;
using test::ValueCodec;
using test::wild;

TEST_P(ValueCodec, GroupsThatAreNotFiniteBecomeNan) {
  for (const float bad : {kInf, -kInf, kNan}) {
    for (const bool in_error : {false, true}) {
      const size_t count = 4097;
      std::vector<float> values = normal(count, 10);
      std::vector<float> add = normal(count, 11, 0.1F);
      const size_t at = 1100;
      (in_error ? add : values)[at] = bad;
      std::vector<float> error = add;
      const std::vector<std::byte> message = encode(
          *codec_,
          {.values = values.data(), .count = count, .add = error.data(), .error = error.data()});
      const std::vector<float> decoded = decode(*codec_, message, count);
      const size_t group = codec_->spec().value.group;
      for (size_t i = 0; i < count; ++i) {
        const bool hit = is_cast(codec_->spec()) ? i == at : i / group == at / group;
        if (!hit) {
          ASSERT_TRUE(std::isfinite(decoded[i])) << i;
          ASSERT_EQ(error[i], values[i] + add[i] - decoded[i]) << i;
          continue;
        }
        if (is_cast(codec_->spec()) && !std::isnan(bad)) {
          ASSERT_EQ(decoded[i], bad);
        } else {
          ASSERT_TRUE(std::isnan(decoded[i])) << i;
        }
        ASSERT_EQ(float_to_bits(error[i]), float_to_bits(add[i])) << i;
      }
    }
  }
}

TEST_P(ValueCodec, ZerosStayZeros) {
  if (codec_->spec().value.kind == ValueKind::kSign) GTEST_SKIP() << "a vote is for or against";
  for (const float zero : {0.0F, -0.0F}) {
    const std::vector<float> values(1025, zero);
    for (const float decoded : round_trip(*codec_, values)) ASSERT_EQ(decoded, 0);
  }
}

TEST_P(ValueCodec, ZerosAmongOthersStayZeros) {
  const ValueSpec& spec = codec_->spec().value;
  const bool has_zero = !spec.hadamard && !spec.minmax && spec.bits > 1;
  if (!has_zero) GTEST_SKIP() << "no code stands for zero";
  std::vector<float> values = normal(4096, 12);
  for (size_t i = 0; i < values.size(); i += 2) values[i] = 0;
  for (uint64_t key = 0; key < 200; ++key) {
    const std::vector<float> decoded = round_trip(*codec_, values, {key, key});
    for (size_t i = 0; i < values.size(); i += 2) ASSERT_EQ(decoded[i], 0) << key << ", " << i;
  }
}

TEST_P(ValueCodec, TinyNumbersAreNoSurprise) {
  if (codec_->spec().value.kind == ValueKind::kSign) GTEST_SKIP() << "a vote has no size";
  for (const float size : {1e-12F, 1e-20F, 1e-28F, 1e-32F, 1e-38F, 1e-42F, 1e-45F}) {
    const std::vector<float> values = normal(1025, 13, size);
    std::vector<float> error(values.size());
    const std::vector<std::byte> message =
        encode(*codec_, {.values = values.data(), .count = values.size(), .error = error.data()});
    const std::vector<float> decoded = decode(*codec_, message, values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(decoded[i]));
      ASSERT_EQ(error[i], values[i] - decoded[i]);
    }
    // Scales work down to 2^-100 of a rotated number, which is 2^-5 of one that is not.
    if (size >= 1e-28F && !is_cast(codec_->spec())) {
      const std::vector<float> usual = normal(1025, 13);
      EXPECT_NEAR(distance(values, round_trip(*codec_, values)) / norm(values),
                  distance(usual, round_trip(*codec_, usual)) / norm(usual), 1e-4)
          << size;
    }
  }
}

TEST_P(ValueCodec, HugeNumbersDoNotOverflow) {
  const ValueKind kind = codec_->spec().value.kind;
  if (kind == ValueKind::kFloat16 || kind == ValueKind::kSign) GTEST_SKIP() << "of smaller range";
  for (const float size : {1e18F, 1e20F, 1e30F, 1e36F}) {
    const std::vector<float> values = normal(1025, 14, size);
    const std::vector<float> usual = normal(1025, 14);
    EXPECT_NEAR(distance(values, round_trip(*codec_, values)) / norm(values),
                distance(usual, round_trip(*codec_, usual)) / norm(usual), 1e-4)
        << size;
  }
}

TEST_P(ValueCodec, TheEndOfTheRangeIsKeptOrNan) {
  std::vector<float> values = normal(1025, 15, 1e38F);
  for (float& value : values) value = std::clamp(value, -3.4e38F, 3.4e38F);
  values[3] = std::numeric_limits<float>::max();
  values[700] = -std::numeric_limits<float>::max();
  const std::vector<float> old(values.size(), 0.25F);
  std::vector<float> error = old;
  const std::vector<std::byte> message =
      encode(*codec_, {.values = values.data(), .count = values.size(), .error = error.data()});
  const std::vector<float> decoded = decode(*codec_, message, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i] - decoded[i])) {
      ASSERT_EQ(error[i], values[i] - decoded[i]);
    } else {
      ASSERT_EQ(error[i], old[i]) << i << ": an error that is not finite would poison what follows";
    }
  }
}

TEST(Codecs, CastsAreThoseOfTheElements) {
  const std::vector<float> values = wild(4097, 16);
  const std::vector<float> half = round_trip(*Codec::make("fp16"), values);
  const std::vector<float> brain = round_trip(*Codec::make("bf16"), values);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(float_to_bits(half[i]), float_to_bits(to_float(from_float<Float16>(values[i]))));
    EXPECT_EQ(float_to_bits(brain[i]), float_to_bits(to_float(from_float<BFloat16>(values[i]))));
  }
  EXPECT_TRUE(same_bits(round_trip(*Codec::make("fp32"), values), values));
}

}  // namespace
}  // namespace q7x2
