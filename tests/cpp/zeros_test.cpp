#include "comm_hooks/compress/zeros.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

template <typename T>
bool zero(const std::vector<T>& numbers) {
  return is_zero(numbers.data(), numbers.size(), sizeof(T));
}

TEST(Zeros, OneOtherNumberAnywhereIsFound) {
  for (const size_t count : {1, 2, 63, 64, 65, 1000}) {
    for (size_t i = 0; i < count; ++i) {
      std::vector<float> numbers(count);
      EXPECT_TRUE(zero(numbers));
      numbers[i] = std::numeric_limits<float>::denorm_min();
      EXPECT_FALSE(zero(numbers)) << i << " of " << count;
    }
  }
}

TEST(Zeros, MinusZeroIsZero) {
  EXPECT_TRUE(zero(std::vector<float>{0.0F, -0.0F}));
  EXPECT_TRUE(zero(std::vector<double>{-0.0, 0.0}));
  EXPECT_TRUE(zero(std::vector<uint16_t>{0x8000, 0}));  // of both 16-bit formats
  EXPECT_TRUE(zero(std::vector<float>{}));
}

TEST(Zeros, NanAndInfinityAreNot) {
  EXPECT_FALSE(zero(std::vector<float>{0, NAN}));
  EXPECT_FALSE(zero(std::vector<double>{-INFINITY}));
  EXPECT_FALSE(zero(std::vector<uint16_t>{0x7e00}));
  EXPECT_FALSE(zero(std::vector<uint16_t>{0x8001}));
}

TEST(Zeros, OtherSizesAreRefused) {
  const char byte = 0;
  EXPECT_THROW(is_zero(&byte, 1, 1), Error);
}

}  // namespace
}  // namespace q7x2
