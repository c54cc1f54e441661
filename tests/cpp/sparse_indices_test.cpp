// How messages state which elements they have.
#include "kernels/codec/sparse_indices.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/sparse_kernels.h"

namespace q7x2 {
namespace {

TEST(SparseIndices, AreWhatTheyWere) {
  std::mt19937_64 random(11);
  for (const size_t positions :
       {size_t{1}, size_t{63}, size_t{64}, size_t{1000}, size_t{300'000}}) {
    for (const double chance : {0.0, 1e-5, 1e-3, 0.01, 0.3, 1.0}) {
      std::vector<uint64_t> mask(mask_words(positions));
      size_t set = 0;
      for (size_t i = 0; i < positions; ++i) {
        if (std::generate_canonical<double, 32>(random) >= chance) continue;
        mask[i / 64] |= uint64_t{1} << (i % 64);
        ++set;
      }
      std::vector<std::byte> deltas(positions * 4 + 8);
      deltas.resize(encode_deltas(mask.data(), positions, deltas.size() - 4, deltas.data()));
      std::vector<std::byte> bitmap(bitmap_bytes(positions));
      encode_bitmap(mask.data(), positions, bitmap.data());
      std::vector<uint64_t> decoded(mask.size(), ~uint64_t{0});
      EXPECT_EQ(decode_deltas(deltas, positions, decoded.data()), set);
      EXPECT_EQ(decoded, mask);
      decoded.assign(mask.size(), ~uint64_t{0});
      EXPECT_EQ(decode_bitmap(bitmap, positions, decoded.data()), set);
      EXPECT_EQ(decoded, mask);
    }
  }
}

TEST(SparseIndices, StateEveryGap) {
  for (const size_t gap : {size_t{0}, size_t{239}, size_t{240}, size_t{4079}, size_t{4080},
                           kLargestGap, kLargestGap + 1}) {
    const size_t positions = gap + 1;
    std::vector<uint64_t> mask(mask_words(positions));
    mask[gap / 64] |= uint64_t{1} << (gap % 64);
    std::array<std::byte, 12> bytes{};
    const size_t length = encode_deltas(mask.data(), positions, 8, bytes.data());
    if (gap > kLargestGap) {
      EXPECT_EQ(length, 8) << "that is: not shorter";
      continue;
    }
    EXPECT_EQ(length, gap < 240 ? 1 : gap < 4080 ? 2 : 4);
    std::vector<uint64_t> decoded(mask.size());
    EXPECT_EQ(decode_deltas(std::span(bytes).first(length), positions, decoded.data()), 1);
    EXPECT_EQ(decoded, mask);
  }
}

TEST(SparseIndices, ThatDoNotFitAreRefused) {
  std::array<uint64_t, 4> mask{};
  const auto deltas = [&](std::vector<uint8_t> bytes, size_t positions) {
    return decode_deltas(std::as_bytes(std::span(bytes)), positions, mask.data());
  };
  EXPECT_EQ(deltas({99}, 100), 1);
  EXPECT_EQ(deltas({100}, 100), std::nullopt);
  EXPECT_EQ(deltas({50, 49}, 100), std::nullopt);
  EXPECT_EQ(deltas({0}, 0), std::nullopt);
  EXPECT_EQ(deltas({240}, 256), std::nullopt) << "one byte of two";
  EXPECT_EQ(deltas({255, 0, 0}, 256), std::nullopt) << "three bytes of four";
  EXPECT_EQ(deltas({255, 255, 255, 255}, 256), std::nullopt);
  const auto bitmap = [&](std::vector<uint8_t> bytes, size_t positions) {
    return decode_bitmap(std::as_bytes(std::span(bytes)), positions, mask.data());
  };
  EXPECT_EQ(bitmap({0x0F}, 4), 4);
  EXPECT_EQ(bitmap({0x1F}, 4), std::nullopt) << "a bit behind the last position";
  EXPECT_EQ(bitmap({0, 0}, 4), std::nullopt);
  EXPECT_EQ(bitmap({}, 4), std::nullopt);
}

}  // namespace
}  // namespace q7x2
