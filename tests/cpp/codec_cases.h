// All value codecs, and numbers for them.
#pragma once

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

#include "kernels/codec/codec.h"

namespace q7x2::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr size_t kCounts[] = {0, 1, 7, 8, 9, 31, 511, 512, 513, 1025, 4097};

inline const std::vector<std::string>& value_codecs() {
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

inline bool is_cast(const CodecSpec& spec) {
  return spec.value.group == 0;
}

inline std::vector<float> normal(size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

/// Magnitudes over the whole range of fp32, in different groups and within groups, with zeros.
inline std::vector<float> wild(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values = normal(count, seed + 1);
  for (size_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(i / 256 * 53 % 250) - 125;
    values[i] = std::ldexp(values[i], exponent - static_cast<int>(random() % 8));
    if (random() % 16 == 0) values[i] = random() % 2 == 0 ? 0.0F : -0.0F;
  }
  return values;
}

inline std::vector<std::byte> encode(const Codec& codec, const EncodeArguments& arguments) {
  std::vector<std::byte> message(codec.max_bytes(arguments.count));
  message.resize(codec.encode(arguments, message.data()));
  return message;
}

inline std::vector<float> decode(const Codec& codec, const std::vector<std::byte>& message,
                                 size_t count, uint64_t first = 0, const CodecKeys& keys = {}) {
  std::vector<float> out(count, kNan);
  codec.decode(message, out.data(), count, first, keys);
  return out;
}

inline std::vector<float> round_trip(const Codec& codec, const std::vector<float>& values,
                                     const CodecKeys& keys = {}) {
  const size_t count = values.size();
  return decode(codec, encode(codec, {.values = values.data(), .count = count, .keys = keys}),
                count, 0, keys);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

/// One of `value_codecs`.
class ValueCodec : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Codec> codec_ = Codec::make(GetParam());
};

}  // namespace q7x2::test
