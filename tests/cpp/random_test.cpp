// The random numbers of the codecs: that they are what a fair coin gives, and reproducible.
#include "kernels/codec/random.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr uint32_t kGroup = 1024;

/// Chi-squared of counts that should be equal, in standard deviations from its mean.
double excess(const std::vector<double>& counts, double expected) {
  double sum = 0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (sum - freedom) / std::sqrt(2 * freedom);
}

TEST(Random, TheNumbersAreFixed) {
  // Both ends of a link must agree on them, whatever versions of the program they run.
  const RandomStream stream = random_stream(1, 2);
  EXPECT_EQ(random_bits(stream, 0), 668435567u);
  EXPECT_EQ(random_bits(stream, 1), 703153047u);
  EXPECT_EQ(random_bits(stream, 0xFFFFFFFF), 184770688u);
}

TEST(Random, TheUpperHalfOfACounterCounts) {
  const uint64_t far = uint64_t{1} << 32;
  std::set<uint32_t> words;
  for (uint64_t counter = 0; counter < 8; ++counter) {
    words.insert(random_bits(random_stream(7, counter * far), 0));
  }
  EXPECT_EQ(words.size(), 8u);
  EXPECT_EQ(random_bits(random_stream(7, 5), 5), random_bits(random_stream(7, 6), 5));
}

TEST(Random, ChancesAreUniform) {
  constexpr size_t kBins = 256;
  std::vector<double> upper(kBins);
  std::vector<double> lower(kBins);
  std::vector<double> both(kBins);
  constexpr uint64_t kGroups = 1000;
  for (uint64_t group = 0; group < kGroups; ++group) {
    const RandomStream stream = group_stream(99, group * kGroup);
    uint32_t last = 0;
    for (uint32_t i = 0; i < kGroup; ++i) {
      const auto chance = static_cast<uint32_t>(group_chance(stream, i) * 65536);
      upper[chance >> 8] += 1;
      lower[chance & 0xFF] += 1;
      both[(chance >> 12) << 4 | last >> 12] += 1;
      last = chance;
    }
  }
  const double expected = static_cast<double>(kGroups * kGroup) / kBins;
  EXPECT_LT(std::fabs(excess(upper, expected)), 5);
  EXPECT_LT(std::fabs(excess(lower, expected)), 5);
  EXPECT_LT(std::fabs(excess(both, expected)), 5) << "neighbours are related";
}

/// Of pairs of positions in groups, and of the same position in neighbouring groups.
TEST(Random, ElementsAreUncorrelated) {
  constexpr uint64_t kGroups = 20000;
  constexpr uint32_t kPositions = 64;
  std::vector<std::array<double, kPositions>> chances(kGroups);
  for (uint64_t group = 0; group < kGroups; ++group) {
    const RandomStream stream = group_stream(5, group * 512);
    for (uint32_t i = 0; i < kPositions; ++i) chances[group][i] = group_chance(stream, i) - 0.5;
  }
  const auto correlation = [&](uint32_t a, uint32_t b, uint64_t step) {
    double sum = 0;
    for (uint64_t group = 0; group + step < kGroups; ++group) {
      sum += chances[group][a] * chances[group + step][b] * 12;
    }
    return sum / static_cast<double>(kGroups);
  };
  const double bound = 6 / std::sqrt(static_cast<double>(kGroups));
  for (uint32_t a = 0; a < kPositions; ++a) {
    for (uint32_t b = a + 1; b < kPositions; ++b) {
      EXPECT_LT(std::fabs(correlation(a, b, 0)), bound) << a << " and " << b;
    }
    EXPECT_LT(std::fabs(correlation(a, a, 1)), bound) << a << " in neighbouring groups";
  }
}

TEST(Random, SignsAreFairAndIndependent) {
  constexpr uint64_t kGroups = 20000;
  constexpr uint32_t kPositions = 1024;
  std::vector<int> sums(kPositions);
  std::vector<int> products(kPositions);
  for (uint64_t group = 0; group < kGroups; ++group) {
    const RandomStream stream = group_stream(11, group * kGroup);
    int last = 1;
    for (uint32_t i = 0; i < kPositions; ++i) {
      const uint32_t bit = group_sign(stream, i);
      ASSERT_TRUE(bit == 0 || bit == 0x80000000u);
      const int sign = bit == 0 ? 1 : -1;
      sums[i] += sign;
      products[i] += sign * last;
      last = sign;
    }
  }
  const double bound = 6 * std::sqrt(static_cast<double>(kGroups));
  for (uint32_t i = 0; i < kPositions; ++i) {
    EXPECT_LT(std::abs(sums[i]), bound) << i;
    EXPECT_LT(std::abs(products[i]), bound) << i;
  }
}

TEST(Random, EveryBitOfAKeyFlipsHalfOfAll) {
  constexpr int kTrials = 4000;
  for (int bit = 0; bit < 64; ++bit) {
    int flipped = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const uint64_t key = mix_keys(3, static_cast<uint64_t>(trial));
      const uint32_t a = random_bits(group_stream(key, 0), 17);
      const uint32_t b = random_bits(group_stream(key ^ (uint64_t{1} << bit), 0), 17);
      flipped += std::popcount(a ^ b);
    }
    EXPECT_NEAR(flipped, kTrials * 16, 6 * std::sqrt(kTrials * 8.0)) << "bit " << bit;
  }
}

TEST(Random, EveryBitOfACounterFlipsHalfOfAll) {
  constexpr int kTrials = 4000;
  for (int bit = 0; bit < 32; ++bit) {
    int flipped = 0;
    for (uint32_t trial = 0; trial < kTrials; ++trial) {
      const RandomStream stream = random_stream(trial, 0);
      flipped +=
          std::popcount(random_bits(stream, trial) ^ random_bits(stream, trial ^ (1u << bit)));
    }
    EXPECT_NEAR(flipped, kTrials * 16, kTrials * 16 * 0.02) << "bit " << bit;
  }
}

TEST(Random, UnitsStayBelowOne) {
  const RandomStream stream = random_stream(0, 0);
  double sum = 0;
  constexpr uint32_t kCount = 1 << 20;
  for (uint32_t i = 0; i < kCount; ++i) {
    const float unit = random_unit(stream, i);
    ASSERT_GE(unit, 0);
    ASSERT_LT(unit, 1);
    sum += unit;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 6 / std::sqrt(12.0 * kCount));
}

}  // namespace
}  // namespace q7x2
