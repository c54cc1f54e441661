// Strips: together they are each region once, and few bytes are not cut.
#include "device/strips.h"

#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(Strips, CoverTheLongestRegion) {
  for (const std::vector<size_t>& regions :
       {std::vector<size_t>{1}, {64}, {100 * kMiB + 4}, {3 * kMiB, 0, kMiB + 7}, {4096, 8192}}) {
    const Strips strips(regions);
    const size_t longest = *std::ranges::max_element(regions);
    ASSERT_GT(strips.count(), 0U);
    EXPECT_EQ(strips.begin(0), 0U);
    EXPECT_EQ(strips.begin(strips.count()), longest);
    for (size_t k = 0; k < strips.count(); ++k) {
      EXPECT_EQ(strips.begin(k) % Strips::kUnit, 0U);
      EXPECT_LT(strips.begin(k), strips.begin(k + 1));
      EXPECT_EQ(strips.within(strips.begin(k)), k);
    }
    EXPECT_EQ(strips.within(longest - 1), strips.count() - 1);
    EXPECT_EQ(strips.within(longest), strips.count());
  }
}

TEST(Strips, AreAsManyAsTheCopiesAreWorth) {
  const auto count = [](const std::vector<size_t>& regions) { return Strips(regions).count(); };
  EXPECT_EQ(count({}), 0U);
  EXPECT_EQ(count({0, 0}), 0U);
  EXPECT_EQ(count({2 * kMiB - 1}), 1U);
  EXPECT_EQ(count({2 * kMiB}), 2U);
  EXPECT_EQ(count({1024 * kMiB}), Strips::kMostCopies);
  EXPECT_EQ(count(std::vector<size_t>(16, 4 * kMiB)), Strips::kMostCopies / 16);
  EXPECT_EQ(count(std::vector<size_t>(100, 4 * kMiB)), 1U);
  const std::vector<size_t> message{64 * kMiB};
  EXPECT_EQ(Strips(message, Strips::kOnePerRegion).count(), 1U);
}

}  // namespace
}  // namespace q7x2
