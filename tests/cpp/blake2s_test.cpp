// BLAKE2s against RFC 7693 and the reference implementation.
#include "base/blake2s.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using Bytes = std::vector<std::byte>;

std::string hex(const Bytes& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : bytes) {
    const auto byte = std::to_integer<unsigned>(each);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Bytes hash_of(const Bytes& data, size_t length = 32, const Bytes& key = {}) {
  Blake2s hash(length, key);
  hash.add(data);
  Bytes result(length);
  hash.finish(result);
  return result;
}

/// 0, 1, 2, ...
Bytes counted(size_t length) {
  Bytes bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(Blake2s, OfTheRfc) {
  EXPECT_EQ(hex(hash_of({std::byte{'a'}, std::byte{'b'}, std::byte{'c'}})),
            "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
}

// Its appendix E: a hash of the hashes of many lengths, with and without keys.
TEST(Blake2s, SelfTestOfTheRfc) {
  const auto sequence = [](size_t length, uint32_t seed) {
    uint32_t a = 0xDEAD4BAD * seed;
    uint32_t b = 1;
    Bytes bytes(length);
    for (std::byte& byte : bytes) {
      const uint32_t next = a + b;
      a = b;
      b = next;
      byte = static_cast<std::byte>(next >> 24);
    }
    return bytes;
  };
  Blake2s all;
  for (const uint32_t length : {16U, 20U, 28U, 32U}) {
    for (const uint32_t bytes : {0U, 3U, 64U, 65U, 255U, 1024U}) {
      all.add(hash_of(sequence(bytes, bytes), length));
      all.add(hash_of(sequence(bytes, bytes), length, sequence(length, length)));
    }
  }
  Bytes result(32);
  all.finish(result);
  EXPECT_EQ(hex(result), "6a411f08ce25adcdfb02aba641451cec53c598b24f4fc787fbdc88797f4c1dfe");
}

TEST(Blake2s, WithAKey) {
  EXPECT_EQ(hex(hash_of({}, 32, counted(32))),
            "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49");
  EXPECT_EQ(hex(hash_of(counted(64), 16, counted(32))), "f1efa90d2547036841ecd3627fafbc36");
  EXPECT_EQ(hex(hash_of(counted(255), 32, counted(32))),
            "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd");
}

TEST(Blake2s, DataMayComeInPieces) {
  const Bytes data = counted(200);
  for (const size_t step : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{128}}) {
    Blake2s hash;
    for (size_t at = 0; at < data.size(); at += step) {
      hash.add(std::span(data).subspan(at, std::min(step, data.size() - at)));
    }
    Bytes result(32);
    hash.finish(result);
    EXPECT_EQ(result, hash_of(data)) << step;
  }
  Blake2s number;
  number.add(uint64_t{0x0706050403020100});
  Bytes result(32);
  number.finish(result);
  EXPECT_EQ(result, hash_of(counted(8)));
}

TEST(Blake2s, Comparison) {
  EXPECT_TRUE(equal_in_constant_time(counted(16), counted(16)));
  EXPECT_TRUE(equal_in_constant_time({}, {}));
  EXPECT_FALSE(equal_in_constant_time(counted(16), counted(15)));
  for (size_t i = 0; i < 16; ++i) {
    Bytes other = counted(16);
    other[i] ^= std::byte{128};
    EXPECT_FALSE(equal_in_constant_time(counted(16), other)) << i;
  }
}

}  // namespace
}  // namespace q7x2
