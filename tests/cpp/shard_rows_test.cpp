// FSDP's rows in two parts, and back.
#include "kernels/cpu/shard_rows.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cpu/convert.h"

namespace q7x2 {
namespace {

const std::vector<ShardPiece> kPieces = {
    {3, 4, true}, {2, 2, false}, {5000, 5120, true}, {0, 0, true}, {1, 1, false}};

std::vector<float> numbers(size_t count) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> between(-4, 4);
  std::vector<float> values(count);
  for (float& value : values) value = between(random);
  return values;
}

/// Rows of floats of `dtype`, from fp32.
std::vector<std::byte> as(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * element_size(dtype));
  narrow(bytes.data(), values.data(), values.size(), dtype);
  return bytes;
}

std::vector<float> as_floats(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / element_size(dtype));
  widen(values.data(), bytes.data(), values.size(), dtype);
  return values;
}

class ShardRowsOf : public ::testing::TestWithParam<DType> {};

TEST_P(ShardRowsOf, ArePackedAndComeBack) {
  const DType dtype = GetParam();
  constexpr size_t kRows = 3;
  const ShardRows layout(kPieces);
  ASSERT_EQ(layout.count(), 5006U);
  ASSERT_EQ(layout.coded_count(), 5124U);
  ASSERT_EQ(layout.whole_count(), 3U);

  const std::vector<std::byte> rows = as(dtype, numbers(kRows * layout.count()));
  const std::vector<float> values = as_floats(dtype, rows);
  std::vector<float> coded(kRows * layout.coded_count(), -1);
  std::vector<std::byte> whole(kRows * layout.whole_count() * element_size(dtype));
  layout.pack(rows.data(), kRows, dtype, 3, coded.data(), whole.data());

  const std::vector<float> kept = as_floats(dtype, whole);
  for (size_t row = 0; row < kRows; ++row) {
    const float* const from = values.data() + row * layout.count();
    const float* const to = coded.data() + row * layout.coded_count();
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(to[i], from[i] / 3);
    EXPECT_EQ(to[3], 0);
    for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(to[4 + i], from[5 + i] / 3) << i;
    for (size_t i = 5004; i < 5124; ++i) ASSERT_EQ(to[i], 0) << i;
    EXPECT_EQ(kept[3 * row], from[3]);
    EXPECT_EQ(kept[3 * row + 1], from[4]);
    EXPECT_EQ(kept[3 * row + 2], from[5005]);
  }

  layout.pack(rows.data(), kRows, dtype, 1, coded.data(), whole.data());
  std::vector<std::byte> again(rows.size());
  layout.unpack(coded.data(), whole.data(), dtype, kRows, 1, again.data(), dtype);
  EXPECT_EQ(again, rows);
}

TEST_P(ShardRowsOf, AreMultipliedAndConverted) {
  const DType dtype = GetParam();
  const ShardRows layout(kPieces);
  const std::vector<float> coded = numbers(layout.coded_count());
  const std::vector<float> whole = numbers(layout.whole_count());
  std::vector<std::byte> row(layout.count() * element_size(dtype));
  layout.unpack(coded.data(), whole.data(), DType::kFloat32, 1, 2.5F, row.data(), dtype);

  std::vector<float> expected;
  for (size_t i = 0; i < 3; ++i) expected.push_back(coded[i] * 2.5F);
  for (size_t i = 0; i < 2; ++i) expected.push_back(whole[i]);
  for (size_t i = 0; i < 5000; ++i) expected.push_back(coded[4 + i] * 2.5F);
  expected.push_back(whole[2]);
  EXPECT_EQ(row, as(dtype, expected));
}

INSTANTIATE_TEST_SUITE_P(DTypes, ShardRowsOf,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                           DType::kFloat64),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST(ShardRows, TakeFloatsOnly) {
  const ShardRows layout({{1, 1, true}});
  const int32_t row = 1;
  float coded = 0;
  EXPECT_THROW(layout.pack(&row, 1, DType::kInt32, 1, &coded, nullptr), Error);
}

TEST(Subtract, GivesTheNormsBeforeAndAfter) {
  for (const size_t count : {0UL, 1UL, 15UL, 16UL, 2048UL, 5001UL}) {
    const std::vector<float> reference = numbers(2 * count);
    std::vector<float> values(reference.begin() + static_cast<ptrdiff_t>(count), reference.end());
    double before = 0;
    double difference = 0;
    std::vector<float> expected;
    for (size_t i = 0; i < count; ++i) {
      expected.push_back(values[i] - reference[i]);
      before += std::pow(values[i], 2.0);
      difference += std::pow(expected[i], 2.0);
    }
    const SquaredNorms norms = subtract(values.data(), reference.data(), count);
    EXPECT_EQ(values, expected);
    EXPECT_NEAR(norms.before, before, 1e-5 * before);
    EXPECT_NEAR(norms.difference, difference, 1e-5 * difference);
  }
}

TEST(Subtract, ShowsWhatIsNotFinite) {
  std::vector<float> values(40, 1);
  values[33] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> reference(40, 0);
  EXPECT_TRUE(std::isnan(subtract(values.data(), reference.data(), 40).difference));
}

}  // namespace
}  // namespace q7x2
