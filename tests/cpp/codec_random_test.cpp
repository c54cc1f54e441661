// Codecs that round at random: without bias, independently per element and per rank.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/random.h"

namespace q7x2 {
namespace {

using test::distance;
using test::normal;
using test::round_trip;
using test::same_bits;
using test::ValueCodec;

/// The squared distance between the mean of many decoded messages and what was encoded, as a
/// multiple of what it should be where errors are independent and of mean zero. About 1 + 0.1 *
/// N(0, 1).
double bias(const Codec& codec, const std::vector<float>& values, int draws) {
  const size_t count = values.size();
  std::vector<double> sums(count);
  double squares = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const auto key = static_cast<uint64_t>(draw);
    const std::vector<float> decoded =
        round_trip(codec, values, {mix_keys(1, key), mix_keys(2, key)});
    for (size_t i = 0; i < count; ++i) {
      const double lost = static_cast<double>(decoded[i]) - values[i];
      sums[i] += lost;
      squares += lost * lost;
    }
  }
  double of_mean = 0;
  for (const double sum : sums) of_mean += sum * sum;
  return of_mean / squares;
}

TEST_P(ValueCodec, TheMeanIsRightWhereTheCodecSaysSo) {
  if (codec_->spec().value.kind == ValueKind::kFloat32) GTEST_SKIP() << "nothing is lost";
  const double measured = bias(*codec_, normal(1024, 18), 1500);
  // A rotation leaves no bias in normal numbers; tests/python/codecs/test_codec_bounds.py has
  // others.
  if (codec_->traits().unbiased || codec_->spec().value.hadamard) {
    EXPECT_LT(measured, 1.5);
  } else {
    EXPECT_GT(measured, 50) << "a codec that rounds to the nearest cannot pass";
  }
}

/// Of signs those of zeros are drawn.
std::vector<float> rounded_at_random(const Codec& codec, uint32_t seed) {
  const bool is_sign = codec.spec().value.kind == ValueKind::kSign;
  return is_sign ? std::vector<float>(1024) : normal(1024, seed);
}

TEST_P(ValueCodec, ErrorsOfElementsAreIndependent) {
  if (!codec_->spec().value.stochastic) GTEST_SKIP() << "rounds the same way each time";
  // Were neighbours rounded alike, the sum of all errors would vary more than its parts say.
  const std::vector<float> values = rounded_at_random(*codec_, 19);
  double parts = 0;
  double whole = 0;
  constexpr int kDraws = 2000;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const std::vector<float> decoded = round_trip(*codec_, values, {1, draw});
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double lost = static_cast<double>(decoded[i]) - values[i];
      sum += lost;
      parts += lost * lost;
    }
    whole += sum * sum;
  }
  EXPECT_NEAR(whole / parts, 1, 6 * std::sqrt(2.0 / kDraws));
}

TEST_P(ValueCodec, RanksThatRoundIndependentlyAverageOut) {
  if (!codec_->spec().value.stochastic) GTEST_SKIP() << "rounds the same way each time";
  const std::vector<float> values = rounded_at_random(*codec_, 20);
  EXPECT_FALSE(same_bits(round_trip(*codec_, values, {1, 1}), round_trip(*codec_, values, {1, 2})));
  EXPECT_TRUE(same_bits(round_trip(*codec_, values, {1, 1}), round_trip(*codec_, values, {1, 1})));
}

}  // namespace
}  // namespace q7x2
