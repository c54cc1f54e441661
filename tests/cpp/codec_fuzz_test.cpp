// Any bytes at all, and messages that were tampered with, given to the decoder of every codec: it
// refuses them or decodes something, and reads and writes nothing but its own. A sanitizer judges.
//
// Q7X2_FUZZ_INPUTS sets the number of inputs; the same number gives the same inputs.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/codec.h"

namespace q7x2 {
namespace {

constexpr size_t kHeader = 16;
constexpr size_t kLongest = 1500;

size_t wanted_inputs() {
  const char* const text = std::getenv("Q7X2_FUZZ_INPUTS");
  return text == nullptr ? 50'000 : std::strtoull(text, nullptr, 10);
}

std::vector<std::shared_ptr<const Codec>> codecs() {
  std::vector<std::shared_ptr<const Codec>> all;
  for (const std::string select : {"", "topk:0.02+", "threshold:1.5+", "randomk:0.1+",
                                   "blocks:0.3+", "nm:1:4+", "topk:0.1:reselect+"}) {
    for (const std::string value : {"fp32", "bf16", "fp8_e5m2", "int8", "int6:g=32", "int3:minmax",
                                    "ternary", "onebit", "hadamard+int4"}) {
      for (const std::string entropy : {"", "+lossless"}) {
        all.push_back(Codec::make(select + value + entropy));
      }
    }
  }
  return all;
}

class Fuzzer {
 public:
  std::vector<std::byte> message(const Codec& codec, size_t count) {
    std::vector<float> values(count);
    const float scale = random_() % 2 == 0 ? 1.0F : 1e-3F;
    for (float& value : values) {
      value = random_() % 4 == 0 ? 0 : scale * (static_cast<float>(random_() % 2001) - 1000);
    }
    std::vector<std::byte> bytes(codec.max_bytes(count));
    const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
    bytes.resize(codec.encode(
        {.values = values.data(), .count = count, .selection = codec.select(read, count, {})},
        bytes.data()));
    return bytes;
  }

  /// A copy with a few changes, mostly of what says how the rest is to be read.
  std::vector<std::byte> tampered(std::vector<std::byte> bytes) {
    for (uint64_t changes = 1 + random_() % 5; changes > 0 && !bytes.empty(); --changes) {
      const size_t range = std::min<size_t>(bytes.size(), random_() % 2 == 0 ? 40 : bytes.size());
      std::byte& byte = bytes[random_() % range];
      switch (random_() % 6) {
        case 0:
          byte ^= std::byte{1} << random_() % 8;
          break;
        case 1:
          byte = std::byte{0xFF};
          break;
        case 2:
          byte = std::byte{0};
          break;
        case 3:
          byte = static_cast<std::byte>(random_());
          break;
        case 4:
          bytes.resize(random_() % (bytes.size() + 1));
          break;
        default:
          bytes.resize(bytes.size() + random_() % 9);
      }
    }
    return bytes;
  }

  /// A right header, and noise behind it.
  std::vector<std::byte> noise(std::vector<std::byte> bytes) {
    bytes.resize(random_() % (2 * bytes.size() + 2));
    for (size_t i = kHeader; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random_());
    return bytes;
  }

  uint64_t random() { return random_(); }

 private:
  std::mt19937_64 random_{1};
};

TEST(CodecFuzz, NoBytesAreReadOrWrittenOutOfBounds) {
  const std::vector<std::shared_ptr<const Codec>> all = codecs();
  Fuzzer fuzzer;
  const size_t inputs = wanted_inputs();
  constexpr size_t kOfOneMessage = 50;
  size_t decoded = 0;
  size_t refused = 0;
  while (decoded + refused < inputs) {
    const Codec& codec = *all[fuzzer.random() % all.size()];
    const Codec& either = fuzzer.random() % 2 == 0 ? codec : codec.of_sums();
    const size_t count = fuzzer.random() % kLongest;
    const std::vector<std::byte> message = fuzzer.message(either, count);
    for (size_t i = 0; i < kOfOneMessage; ++i) {
      std::vector<std::byte> bytes =
          fuzzer.random() % 4 == 0 ? fuzzer.noise(message) : fuzzer.tampered(message);
      bytes.shrink_to_fit();
      std::vector<float> out(count);
      const uint64_t first = fuzzer.random() % 1024;
      try {
        if (i % 2 == 0) {
          either.decode(bytes, out.data(), count, first, {});
        } else {
          either.decode_add(bytes, out.data(), count, first, {});
        }
        ++decoded;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
        ++refused;
      }
    }
  }
  // The inputs were worth something: many got past the header.
  EXPECT_GT(decoded, inputs / 20);
  EXPECT_GT(refused, inputs / 20);
}

}  // namespace
}  // namespace q7x2
