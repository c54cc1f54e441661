// The codecs: what comes back, what is kept of the rest, and what is refused, on every instruction
// set that this processor runs.
#include "kernels/codec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/elements.h"
#include "kernels/random.h"
#include "kernels/value_codec.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kCounts[] = {0, 1, 7, 8, 9, 31, 511, 512, 513, 1025, 4097};

const std::vector<std::string>& value_codecs() {
  static const std::vector<std::string> names = {
      "fp32",
      "fp16",
      "bf16",
      "fp8_e4m3",
      "fp8_e4m3:g=32",
      "fp8_e5m2",
      "int8",
      "int8:g=32",
      "int8:sr",
      "int8:minmax",
      "int8:g=1024:minmax:sr",
      "int6",
      "int6:sr",
      "int4",
      "int4:g=128:sr",
      "int4:minmax",
      "int4:g=64:minmax:sr",
      "int3",
      "int3:sr",
      "int2",
      "int2:g=32:sr",
      "int2:minmax",
      "qsgd",
      "qsgd:bits=2",
      "qsgd:g=64:bits=8",
      "ternary",
      "ternary:g=64",
      "onebit",
      "onebit:g=32",
      "sign",
      "hadamard+int8",
      "hadamard+int4",
      "hadamard+int4:g=1024",
      "hadamard+int4:g=32:sr",
      "hadamard+int2",
      "hadamard+fp8_e4m3",
      "hadamard+qsgd",
      "hadamard+ternary",
      "hadamard+onebit",
      "hadamard+onebit:g=64",
  };
  return names;
}

bool is_cast(const CodecSpec& spec) {
  return spec.value.group == 0;
}

std::vector<float> normal(size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

/// Magnitudes over the whole range of fp32, group by group and within groups, with zeros.
std::vector<float> wild(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values = normal(count, seed + 1);
  for (size_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(i / 256 * 53 % 250) - 125;
    values[i] = std::ldexp(values[i], exponent - static_cast<int>(random() % 8));
    if (random() % 16 == 0) values[i] = random() % 2 == 0 ? 0.0F : -0.0F;
  }
  return values;
}

std::vector<std::byte> encode(const Codec& codec, const EncodeArguments& arguments) {
  std::vector<std::byte> message(codec.max_bytes(arguments.count));
  message.resize(codec.encode(arguments, message.data()));
  return message;
}

std::vector<float> decode(const Codec& codec, const std::vector<std::byte>& message, size_t count,
                          uint64_t first = 0, const CodecKeys& keys = {}) {
  std::vector<float> out(count, kNan);
  codec.decode(message, out.data(), count, first, keys);
  return out;
}

std::vector<float> round_trip(const Codec& codec, const std::vector<float>& values,
                              const CodecKeys& keys = {}) {
  const size_t count = values.size();
  return decode(codec, encode(codec, {.values = values.data(), .count = count, .keys = keys}),
                count, 0, keys);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

class ValueCodec : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Codec> codec_ = Codec::make(GetParam());
};

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Names, ValueCodec, testing::ValuesIn(value_codecs()), test_name);

// ---------------------------------------------------------------------- equal on every processor

TEST_P(ValueCodec, InstructionSetsAgreeBitByBit) {
  const ValueSpec spec = codec_->spec().value;
  const ValueKernels& reference = value_kernels().back();
  ASSERT_STREQ(reference.isa, "baseline");
  for (const size_t count : kCounts) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{12345}, uint64_t{0xFFFFFFFFF}}) {
      std::vector<float> values = first == 0 ? normal(count, 1) : wild(count, 2);
      if (first == 12345 && count > 8) {
        values[count / 2] = kInf;
        values[count - 1] = kNan;
      }
      const std::vector<float> add = normal(count, 3, 0.1F);
      struct Result {
        std::vector<std::byte> body;
        std::vector<float> error;
        std::vector<float> decoded;
        std::vector<float> added;
      };
      const auto run = [&](const ValueKernels& kernels, bool feedback) {
        Result result;
        result.body.resize(value_bytes(spec, count));
        result.error = feedback ? add : normal(count, 4);
        ValueBlock block = {.values = values.data(),
                            .count = count,
                            .first = first,
                            .error_scale = 0.9F,
                            .shared_key = 17,
                            .rounding_key = 42};
        if (feedback) block.add = result.error.data();
        block.error = result.error.data();
        kernels.encode(spec, block, result.body.data());
        result.decoded.resize(count);
        kernels.decode(spec, result.body.data(), result.decoded.data(), count, first, 17, false);
        result.added = add;
        kernels.decode(spec, result.body.data(), result.added.data(), count, first, 17, true);
        return result;
      };
      for (const bool feedback : {false, true}) {
        const Result expected = run(reference, feedback);
        for (const ValueKernels& kernels : value_kernels()) {
          const Result result = run(kernels, feedback);
          EXPECT_EQ(result.body, expected.body) << kernels.isa << ", " << count;
          EXPECT_TRUE(same_bits(result.error, expected.error)) << kernels.isa << ", " << count;
          EXPECT_TRUE(same_bits(result.decoded, expected.decoded)) << kernels.isa << ", " << count;
          EXPECT_TRUE(same_bits(result.added, expected.added)) << kernels.isa << ", " << count;
        }
      }
    }
  }
}

TEST_P(ValueCodec, AnyAddressWillDo) {
  const size_t count = 1025;
  const std::vector<float> values = normal(count, 5);
  const std::vector<std::byte> message =
      encode(*codec_, {.values = values.data(), .count = count, .first = 3});
  std::vector<std::byte> shifted(message.size() + 1);
  codec_->encode({.values = values.data(), .count = count, .first = 3}, shifted.data() + 1);
  EXPECT_TRUE(std::equal(message.begin(), message.end(), shifted.begin() + 1));
  std::vector<float> out(count);
  codec_->decode({shifted.data() + 1, message.size()}, out.data(), count, 3, {});
  EXPECT_TRUE(same_bits(out, decode(*codec_, message, count, 3)));
}

// ------------------------------------------------------------------------------- error feedback

TEST_P(ValueCodec, TheErrorIsWhatIsNotDecoded) {
  for (const size_t count : kCounts) {
    const std::vector<float> values = wild(count, 6);
    const std::vector<float> add = wild(count, 7);
    const CodecKeys keys = {3, 4};
    std::vector<float> error(count, kNan);
    const std::vector<std::byte> message = encode(*codec_, {.values = values.data(),
                                                            .count = count,
                                                            .add = add.data(),
                                                            .error = error.data(),
                                                            .keys = keys});
    const std::vector<float> decoded = decode(*codec_, message, count, 0, keys);
    for (size_t i = 0; i < count; ++i) {
      const float sum = values[i] + add[i];
      if (!std::isfinite(decoded[i])) continue;
      EXPECT_EQ(error[i], sum - decoded[i]) << i << " of " << count;
    }
    // In place, as a caller keeps it, and scaled.
    std::vector<float> kept = add;
    const std::vector<std::byte> again = encode(*codec_, {.values = values.data(),
                                                          .count = count,
                                                          .add = kept.data(),
                                                          .error = kept.data(),
                                                          .error_scale = 0.5F,
                                                          .keys = keys});
    EXPECT_EQ(again, message);
    for (size_t i = 0; i < count; ++i) {
      if (std::isfinite(decoded[i])) {
        EXPECT_EQ(kept[i], error[i] * 0.5F);
      }
    }
  }
}

TEST_P(ValueCodec, DecodeAddAdds) {
  const size_t count = 1025;
  const std::vector<float> values = normal(count, 8);
  const std::vector<std::byte> message = encode(*codec_, {.values = values.data(), .count = count});
  const std::vector<float> decoded = decode(*codec_, message, count);
  std::vector<float> sum = normal(count, 9);
  std::vector<float> expected(count);
  for (size_t i = 0; i < count; ++i) expected[i] = sum[i] + decoded[i];
  codec_->decode_add(message, sum.data(), count, 0, {});
  EXPECT_TRUE(same_bits(sum, expected));
}

TEST_P(ValueCodec, NothingIsLostOverManySteps) {
  if (!codec_->traits().keeps_error) GTEST_SKIP() << "votes keep no errors";
  const size_t count = 513;
  std::vector<float> error(count);
  std::vector<double> sent(count);
  std::vector<double> given(count);
  double largest = 0;
  constexpr int kSteps = 1000;
  for (unsigned step = 0; step < kSteps; ++step) {
    const std::vector<float> gradient = normal(count, step);
    const CodecKeys keys = {step, step + 1};
    const std::vector<std::byte> message = encode(*codec_, {.values = gradient.data(),
                                                            .count = count,
                                                            .add = error.data(),
                                                            .error = error.data(),
                                                            .keys = keys});
    const std::vector<float> decoded = decode(*codec_, message, count, 0, keys);
    for (size_t i = 0; i < count; ++i) {
      sent[i] += decoded[i];
      given[i] += gradient[i];
      largest = std::max({largest, std::fabs(static_cast<double>(decoded[i])),
                          std::fabs(static_cast<double>(error[i]))});
    }
  }
  EXPECT_LT(norm(error), 100 * norm(normal(count, 0))) << "errors grow";
  // Each step rounds a sum and a difference of numbers of this size to fp32.
  const double rounding = std::ldexp(largest, -23) * std::sqrt(kSteps) * 6;
  for (size_t i = 0; i < count; ++i) EXPECT_NEAR(sent[i] + error[i], given[i], rounding);
}

// ------------------------------------------------------------------------------ numbers at the end

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

// -------------------------------------------------------------------------------------- unbiased

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
  if (codec_->traits().unbiased) {
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

// ---------------------------------------------------------------------------------------- refused

TEST_P(ValueCodec, MessagesAreAsLongAsTheySay) {
  for (const size_t count : kCounts) {
    const std::vector<float> values = normal(count, 21);
    const std::vector<std::byte> message =
        encode(*codec_, {.values = values.data(), .count = count});
    EXPECT_EQ(message.size(), codec_->max_bytes(count));
    if (count >= 4096) {
      const double bits = 8.0 * static_cast<double>(message.size()) / static_cast<double>(count);
      EXPECT_NEAR(bits, codec_->traits().bits, 0.1);
    }
  }
}

TEST_P(ValueCodec, OthersMessagesAreRefused) {
  const size_t count = 513;
  const std::vector<float> values = normal(count, 22);
  const std::vector<std::byte> message = encode(*codec_, {.values = values.data(), .count = count});
  const auto refused = [&](std::vector<std::byte> bytes, size_t elements) {
    std::vector<float> out(elements);
    try {
      codec_->decode(bytes, out.data(), elements, 0, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_NE(std::string(error.what()).find(codec_->name()), std::string::npos) << error.what();
      EXPECT_THROW(codec_->decode_add(bytes, out.data(), elements, 0, {}), Error);
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(message, count));
  EXPECT_TRUE(refused(message, count - 1));
  EXPECT_TRUE(refused(message, count + 1));
  EXPECT_TRUE(refused({}, count));
  for (const size_t length : {size_t{1}, size_t{15}, size_t{16}, message.size() - 1}) {
    EXPECT_TRUE(refused({message.begin(), message.begin() + static_cast<ptrdiff_t>(length)}, count))
        << length;
  }
  std::vector<std::byte> longer = message;
  longer.emplace_back();
  EXPECT_TRUE(refused(longer, count));
  for (size_t at = 0; at < 16; ++at) {
    std::vector<std::byte> damaged = message;
    damaged[at] ^= std::byte{1};
    EXPECT_TRUE(refused(damaged, count)) << "byte " << at;
  }
  const auto other = Codec::make(codec_->name() == "int8" ? "int6" : "int8");
  EXPECT_TRUE(refused(encode(*other, {.values = values.data(), .count = count}), count));
}

TEST(Codecs, IntegersThatAddHaveNoMessages) {
  const auto codec = Codec::make("sumint8");
  EXPECT_FALSE(codec->has_messages());
  std::vector<float> values(8);
  std::vector<std::byte> message(64);
  EXPECT_THROW(codec->encode({.values = values.data(), .count = 8}, message.data()), Error);
  EXPECT_THROW(codec->decode(message, values.data(), 8, 0, {}), Error);
}

}  // namespace
}  // namespace q7x2
