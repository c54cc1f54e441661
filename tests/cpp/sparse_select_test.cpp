// What is selected, against a sort.
#include "kernels/codec/sparse_select.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/value_elements.h"
#include "sparse_cases.h"

namespace q7x2 {
namespace {

using test::awkward;
using test::bits;
using test::kNaN;
using test::normal;
using test::reader;
using test::sorted_out;

std::set<size_t> selected_by(const std::vector<float>& values, Selection selection) {
  std::set<size_t> selected;
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_selected(magnitude_bits(values[i]), selection.least, i <= selection.last_tie)) {
      selected.insert(i);
    }
  }
  return selected;
}

TEST(Selection, OfTheLargestIsThatOfASort) {
  const auto rounded = [](std::vector<float> values) {
    for (float& value : values) value = std::round(value * 4) / 4;
    return values;
  };
  const auto mostly_zero = [](std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % 200 != 0) values[i] = 0;
    }
    return values;
  };
  const auto large_at_the_end = [](std::vector<float> values) {
    for (size_t i = values.size() - values.size() / 50; i < values.size(); ++i) values[i] *= 1e6F;
    return values;
  };
  const auto growing = [](std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    return values;
  };
  for (const size_t count : {size_t{1}, size_t{2}, size_t{100}, size_t{9000}, size_t{100'000}}) {
    const std::map<std::string, std::vector<float>> inputs = {
        {"normal", normal(count, 1)},
        {"rounded", rounded(normal(count, 2))},
        {"mostly zero", mostly_zero(normal(count, 3))},
        {"large at the end", large_at_the_end(normal(count, 4))},
        {"growing", growing(normal(count, 5))},
        {"equal", std::vector<float>(count, -3)},
        {"zero", std::vector<float>(count)},
        {"not finite", awkward(count, 6)},
        {"NaN", std::vector<float>(count, kNaN)},
        {"tiny", std::vector<float>(count, 1e-45F)}};
    for (const auto& [name, values] : inputs) {
      for (const double ratio : {1e-9, 0.001, 0.01, 0.1, 0.5, 0.99, 1.0}) {
        const size_t k = selected_count(ratio, count);
        const Selection selection = select_largest(reader(values), count, k, 12);
        EXPECT_EQ(selected_by(values, selection), sorted_out(values, k))
            << name << " " << ratio << " of " << count;
        EXPECT_LE(selection.least, kInfinityBits);
      }
    }
  }
}

/// Of many equal magnitudes, so that the last ones that are kept are ties.
TEST(Selection, GathersWhatItSends) {
  std::vector<float> values = normal(100'003, 21);
  for (float& value : values) value = std::round(value * 8) / 8;
  values[5] = kNaN;
  const size_t k = selected_count(0.02, values.size());
  const Selection selection = select_largest(reader(values), values.size(), k, 22);
  ASSERT_NE(selection.gathered, nullptr);
  const std::set<size_t> expected = sorted_out(values, k);
  EXPECT_EQ(selected_by(values, selection), expected);
  EXPECT_EQ(selection.gathered->values().size(), expected.size());
  for (const size_t first : {size_t{0}, size_t{1}, size_t{64}, size_t{8191}, size_t{99'000}}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1003}}) {
      std::vector<uint64_t> mask(mask_words(count));
      std::vector<float> sent;
      for (size_t i = 0; i < count; ++i) {
        if (expected.contains(first + i)) sent.push_back(values[first + i]);
      }
      ASSERT_EQ(selection.gathered->copy_mask(first, count, mask.data()), sent.size());
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ((mask[i / 64] >> (i % 64) & 1) != 0, expected.contains(first + i));
      }
      const float* const from = selection.gathered->values_from(first);
      EXPECT_EQ(bits(std::vector<float>(from, from + sent.size())), bits(sent));
    }
  }
}

TEST(Selection, OfARatioRoundsUp) {
  EXPECT_EQ(selected_count(0.01, 0), 0);
  EXPECT_EQ(selected_count(0.01, 1), 1);
  EXPECT_EQ(selected_count(0.01, 101), 2);
  EXPECT_EQ(selected_count(0.5, 10), 5);
  EXPECT_EQ(selected_count(1, 10), 10);
}

TEST(Selection, BySampleIsAboutRight) {
  const std::vector<float> values = normal(1'000'000, 13);
  const Selection selection = select_sampled(reader(values), values.size(), 0.01, 14);
  const size_t selected = selected_by(values, selection).size();
  EXPECT_GT(selected, 8'000);
  EXPECT_LT(selected, 12'000);
  const Selection again = select_sampled(reader(values), values.size(), 0.01, 14);
  EXPECT_EQ(selection.least, again.least);
}

TEST(Selection, OfBlocksGoesByTheirNorms) {
  std::vector<float> values = normal(256 * 100 + 7, 15);
  for (const size_t block : {3, 50, 100}) {
    for (size_t i = block * 256; i < std::min((block + 1) * 256, values.size()); ++i)
      values[i] *= 100;
  }
  const Selection selection = select_blocks(reader(values), values.size(), 0.03, 16);
  std::set<size_t> selected;
  for (size_t block = 0; block <= 100; ++block) {
    double norm = 0;
    for (size_t i = block * 256; i < std::min((block + 1) * 256, values.size()); ++i) {
      norm += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    if (std::sqrt(norm) >= static_cast<double>(float_from_bits(selection.least)) * (1 - 1e-6)) {
      selected.insert(block);
    }
  }
  // ceil(0.03 * 101) = 4: the three, and the one that happens to be next.
  EXPECT_EQ(selected.size(), 4);
  for (const size_t block : {3, 50, 100}) EXPECT_TRUE(selected.contains(block));
}

}  // namespace
}  // namespace q7x2
