// The entropy stage: what comes back, what it saves, that it leaves alone what does not pay, and
// what happens to damaged bytes.
#include "kernels/codec/entropy.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value_codec.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {
namespace {

constexpr size_t kBlock = 1 << 16;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

ValueSpec value_of(const std::string& name) {
  return parse_codec(name).value;
}

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& values) {
  const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
  const Selection selection = codec.select(read, values.size(), {});
  std::vector<std::byte> message(codec.max_bytes(values.size()));
  message.resize(codec.encode(
      {.values = values.data(), .count = values.size(), .selection = selection}, message.data()));
  return message;
}

std::vector<uint32_t> decoded_bits(const Codec& codec, const std::vector<std::byte>& message,
                                   size_t count) {
  std::vector<float> out(count);
  codec.decode(message, out.data(), count, 0, {});
  std::vector<uint32_t> bits(count);
  for (size_t i = 0; i < count; ++i) bits[i] = float_to_bits(out[i]);
  return bits;
}

TEST(Entropy, AnyBodyComesBack) {
  std::mt19937_64 random(1);
  for (const char* name : {"fp32", "fp16", "int8", "int4:minmax:g=32", "onebit"}) {
    const ValueSpec spec = value_of(name);
    for (const size_t entries : {0, 1, 2, 255, 256, 1000, 20'000}) {
      for (const size_t indices : {0, 1, 300, 5000}) {
        std::vector<std::byte> body(value_bytes(spec, entries) + indices);
        for (std::byte& each : body) {
          each = static_cast<std::byte>(random() % 100 == 0 ? random() : 0);
        }
        std::vector<std::byte> packed = body;
        const auto length = pack_body(spec, entries, packed);
        if (!length) {
          EXPECT_EQ(packed, body) << "what does not pay is left alone";
          EXPECT_LT(body.size(), 1024) << "nearly all are zeros";
          continue;
        }
        ASSERT_LT(*length, body.size());
        packed.resize(*length);
        const auto unpacked = unpack_body(spec, entries, packed, body.size());
        ASSERT_TRUE(unpacked);
        EXPECT_TRUE(std::equal(body.begin(), body.end(), unpacked->begin(), unpacked->end()));
        EXPECT_FALSE(unpack_body(spec, entries, packed, body.size() - 1)) << "longer than may be";
      }
    }
  }
}

TEST(Entropy, NoiseIsLeftAlone) {
  for (const char* name : {"fp32", "bf16", "int8", "onebit"}) {
    const ValueSpec spec = value_of(name);
    const std::vector<std::byte> body = random_bytes(value_bytes(spec, kBlock) + 1000, 2);
    std::vector<std::byte> packed = body;
    EXPECT_FALSE(pack_body(spec, kBlock, packed)) << name;
    EXPECT_EQ(packed, body);
  }
}

TEST(Entropy, SavesWhatItShould) {
  const std::vector<float> values = normal(kBlock, 3);
  const auto bits = [&](const std::string& name) {
    return static_cast<double>(encode(*Codec::make(name), values).size()) * 8 / kBlock;
  };
  EXPECT_LT(bits("lossless"), 27.3);
  EXPECT_LT(bits("bf16+lossless"), 11.3);
  EXPECT_LT(bits("fp16+lossless"), 14.3);
  EXPECT_LT(bits("int8+lossless"), 7.6);
  EXPECT_LT(bits("int4+lossless"), 3.4);
  EXPECT_LT(bits("ternary+lossless"), 1.3);
  EXPECT_EQ(bits("onebit+lossless"), bits("onebit"));
  EXPECT_LT(bits("topk:0.01+lossless"), 0.95 * bits("topk:0.01"));
}

TEST(Entropy, AMessageDependsOnItsBlockAlone) {
  const auto codec = Codec::make("bf16+lossless");
  const std::vector<float> values = normal(kBlock, 4);
  const std::vector<std::byte> message = encode(*codec, values);
  std::vector<float> noise(kBlock);
  const std::vector<std::byte> bytes = random_bytes(kBlock * sizeof(float), 5);
  std::memcpy(noise.data(), bytes.data(), bytes.size());
  for (int i = 0; i < 20; ++i) encode(*codec, noise);
  EXPECT_EQ(encode(*codec, values), message);
}

class LosslessTest : public testing::TestWithParam<std::string> {
 protected:
  const std::string plain_name = GetParam();
  const std::shared_ptr<const Codec> plain = Codec::make(plain_name);
  const std::shared_ptr<const Codec> lossless =
      Codec::make(plain_name == "fp32" ? "lossless" : plain_name + "+lossless");
};

TEST_P(LosslessTest, GivesWhatTheCodecGivesWithoutIt) {
  EXPECT_FALSE(lossless->traits().fixed_size);
  for (const size_t count : {0, 1, 2, 17, 255, 256, 1000, 4099, 100'000}) {
    for (const std::vector<float>& values :
         {normal(count, 6), std::vector<float>(count), std::vector<float>(count, kNaN)}) {
      const std::vector<std::byte> message = encode(*lossless, values);
      const std::vector<std::byte> longer = encode(*plain, values);
      EXPECT_LE(message.size(), longer.size());
      EXPECT_EQ(decoded_bits(*lossless, message, count), decoded_bits(*plain, longer, count));
    }
  }
}

TEST_P(LosslessTest, DamagedMessagesAreRefusedOrHarmless) {
  constexpr size_t kCount = 3000;
  const std::vector<float> values = normal(kCount, 7);
  const std::vector<std::byte> message = encode(*lossless, values);
  std::mt19937_64 random(8);
  size_t refused = 0;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::vector<std::byte> damaged = message;
    const size_t front = std::min<size_t>(damaged.size(), 40);
    for (uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      const size_t range = random() % 2 == 0 ? front : damaged.size();
      damaged[random() % range] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    // A copy of just the right size: a sanitizer sees every byte beyond.
    const std::vector<std::byte> exact(damaged.begin(), damaged.end());
    std::vector<float> out(kCount);
    try {
      lossless->decode(exact, out.data(), kCount, 0, {});
      lossless->decode_add(exact, out.data(), kCount, 0, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

INSTANTIATE_TEST_SUITE_P(EveryName, LosslessTest,
                         testing::Values("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8",
                                         "int6", "int4", "int3:sr", "int2:minmax:g=32", "qsgd",
                                         "ternary", "onebit", "sign", "hadamard+int4", "topk:0.01",
                                         "topk:0.3+int8", "sampled:0.05+bf16", "threshold:1",
                                         "randomk:0.1+int4", "blocks:0.2", "nm:2:4+int8"),
                         [](const auto& each) {
                           std::string name = each.param;
                           for (char& letter : name) letter = std::isalnum(letter) ? letter : '_';
                           return name;
                         });

}  // namespace
}  // namespace q7x2
