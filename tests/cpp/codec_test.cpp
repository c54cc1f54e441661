// The codecs: equal on every instruction set that this processor runs, what is kept of the rest,
// and what is refused.
#include "kernels/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "codec_cases.h"
#include "kernels/codec/value_codec.h"

namespace q7x2 {
namespace {

using test::decode;
using test::encode;
using test::kCounts;
using test::kInf;
using test::kNan;
using test::norm;
using test::normal;
using test::same_bits;
using test::value_codecs;
using test::ValueCodec;
using test::wild;

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
