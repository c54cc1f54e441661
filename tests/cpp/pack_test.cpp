// Packed codes: the layout that docs/wire_format.md describes, and back.
#include "kernels/codec/pack.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr int kWidths[] = {1, 2, 3, 4, 6, 8};

std::vector<uint8_t> random_codes(int bits, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> codes(count);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & ((1u << bits) - 1));
  return codes;
}

/// The description of the layout, one bit at a time.
std::vector<uint8_t> reference(const std::vector<uint8_t>& codes, int bits) {
  std::vector<uint8_t> packed(codes.size() * static_cast<size_t>(bits) / 8);
  size_t plane = 0;
  int shift = 0;
  for (const int width : {8, 4, 2, 1}) {
    if ((bits & width) == 0) continue;
    const size_t stride = codes.size() * static_cast<size_t>(width) / 8;
    for (size_t i = 0; i < codes.size(); ++i) {
      const int part = (codes[i] >> shift) & ((1 << width) - 1);
      const int position = static_cast<int>(i / stride) * width;
      packed[plane + i % stride] =
          static_cast<uint8_t>(packed[plane + i % stride] | (part << position));
    }
    plane += stride;
    shift += width;
  }
  return packed;
}

TEST(Pack, TheLayoutIsTheDocumentedOne) {
  for (const int bits : kWidths) {
    for (size_t count = 8; count <= 1024; count += 8) {
      const std::vector<uint8_t> codes = random_codes(bits, count, static_cast<unsigned>(count));
      std::vector<uint8_t> packed(count * static_cast<size_t>(bits) / 8);
      pack(codes.data(), bits, count, packed.data());
      ASSERT_EQ(packed, reference(codes, bits)) << bits << " bits, " << count << " codes";
    }
  }
}

TEST(Pack, UnpackIsTheInverse) {
  for (const int bits : kWidths) {
    for (size_t count = 8; count <= 1024; count += 8) {
      const std::vector<uint8_t> codes =
          random_codes(bits, count, static_cast<unsigned>(count) + 1);
      std::vector<uint8_t> packed(count * static_cast<size_t>(bits) / 8);
      std::vector<uint8_t> unpacked(count, 0xFF);
      pack(codes.data(), bits, count, packed.data());
      unpack(packed.data(), bits, count, unpacked.data());
      ASSERT_EQ(unpacked, codes) << bits << " bits, " << count << " codes";
    }
  }
}

TEST(Pack, OneAtATimeIsTheSame) {
  for (const int bits : kWidths) {
    for (const size_t count : {8, 16, 24, 504, 512, 1024}) {
      const std::vector<uint8_t> codes =
          random_codes(bits, count, static_cast<unsigned>(count) + 2);
      const std::vector<uint8_t> packed = reference(codes, bits);
      for (size_t i = 0; i < packed.size(); ++i) {
        ASSERT_EQ(packed_byte(codes.data(), bits, count, i), packed[i]) << bits << " bits, " << i;
      }
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(unpacked_code(packed.data(), bits, count, i), codes[i]) << bits << " bits, " << i;
      }
    }
  }
}

TEST(Pack, WordsAndPowersOfTwoAreTheSame) {
  for (const int bits : kWidths) {
    for (const size_t count : {32, 64, 96, 480, 512, 1024}) {
      std::vector<uint32_t> words(count / 4);
      const std::vector<uint8_t> codes =
          random_codes(bits, count, static_cast<unsigned>(count) + 4);
      std::memcpy(words.data(), codes.data(), count);
      const std::vector<uint8_t> packed = reference(codes, bits);
      std::vector<uint32_t> packed_words(packed.size() / 4);
      std::memcpy(packed_words.data(), packed.data(), packed.size());
      for (size_t i = 0; i < packed_words.size(); ++i) {
        ASSERT_EQ(packed_word(words.data(), bits, count, i), packed_words[i]) << bits << " bits";
      }
      if ((count & (count - 1)) != 0) continue;
      const int log2_count = __builtin_ctzll(count);
      const auto word = [&](unsigned i) { return packed_words.at(i); };
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(unpacked_code_of_power(packed.data(), bits, log2_count, i), codes[i]);
      }
      for (size_t i = 0; i < count / 4; ++i) {
        ASSERT_EQ(unpacked_codes_of_power(word, bits, log2_count, i), words[i]) << bits << " bits";
      }
    }
  }
}

TEST(Pack, AnyBytesAreCodes) {
  for (const int bits : kWidths) {
    const size_t count = 64;
    const std::vector<uint8_t> packed = random_codes(8, count * static_cast<size_t>(bits) / 8, 3);
    std::vector<uint8_t> codes(count);
    unpack(packed.data(), bits, count, codes.data());
    for (const uint8_t code : codes) ASSERT_LT(code, 1 << bits);
    std::vector<uint8_t> again(packed.size());
    pack(codes.data(), bits, count, again.data());
    ASSERT_EQ(again, packed);
  }
}

}  // namespace
}  // namespace q7x2
