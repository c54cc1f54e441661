// The loops of the select stage, of every instruction set, against one element at a time.
#include "kernels/codec/sparse_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/random.h"
#include "kernels/codec/value_elements.h"
#include "sparse_cases.h"

namespace q7x2 {
namespace {

using test::awkward;
using test::bits;
using test::kInf;
using test::kLengths;
using test::kNaN;
using test::normal;

constexpr uint64_t kNoTie = ~uint64_t{0};

std::vector<bool> bools(const std::vector<uint64_t>& mask, size_t count) {
  std::vector<bool> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = (mask[i / 64] >> (i % 64) & 1) != 0;
  for (size_t i = count; i < mask.size() * 64; ++i) {
    EXPECT_EQ(mask[i / 64] >> (i % 64) & 1, 0) << "behind the last element";
  }
  return all;
}

size_t set_in(const std::vector<bool>& all) {
  return static_cast<size_t>(std::count(all.begin(), all.end(), true));
}

class SparseKernelsTest : public testing::TestWithParam<const SparseKernels*> {
 protected:
  const SparseKernels& kernels = *GetParam();
};

TEST_P(SparseKernelsTest, Sums) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = normal(count, 1);
    std::vector<float> add = normal(count, 2);
    std::vector<float> expected(count);
    for (size_t i = 0; i < count; ++i) expected[i] = (values[i] + add[i]) * 0.75F;
    kernels.sum(values.data(), add.data(), 0.75F, count, add.data());
    EXPECT_EQ(bits(add), bits(expected)) << count;
    for (size_t i = 0; i < count; ++i) expected[i] = values[i] * 0.75F;
    kernels.sum(values.data(), nullptr, 0.75F, count, add.data());
    EXPECT_EQ(bits(add), bits(expected)) << count;
  }
}

TEST_P(SparseKernelsTest, MarksMagnitudesAndTies) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = awkward(count, count);
    for (const float least : {0.0F, 1e-42F, 0.5F, 1.0F, 3e38F, kInf}) {
      for (const size_t ties :
           {size_t{0}, size_t{1}, count / 3, count - std::min<size_t>(count, 1), count}) {
        if (least == kInf && ties < count) continue;
        std::vector<uint64_t> mask(mask_words(count), ~uint64_t{0});
        const size_t sent =
            kernels.mark(values.data(), count, float_to_bits(least), ties, mask.data());
        const std::vector<bool> marked = bools(mask, count);
        for (size_t i = 0; i < count; ++i) {
          const uint32_t magnitude = magnitude_bits(values[i]);
          const bool is_tie = magnitude == float_to_bits(least) && i < ties;
          EXPECT_EQ(marked[i], magnitude > float_to_bits(least) || is_tie) << i << " of " << count;
        }
        EXPECT_EQ(sent, set_in(marked));
      }
    }
  }
}

TEST_P(SparseKernelsTest, SiftsAsItMarksAndCompacts) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = awkward(count, 7);
    for (const float least : {1e-45F, 0.5F, 2.0F, std::numeric_limits<float>::infinity()}) {
      std::vector<uint64_t> mask(mask_words(count));
      std::vector<uint64_t> expected_mask(mask_words(count));
      std::vector<float> sifted(count);
      std::vector<float> expected(count);
      const uint32_t bound = magnitude_bits(least);
      const size_t kept = kernels.sift(values.data(), count, bound, mask.data(), sifted.data());
      EXPECT_EQ(kept, kernels.mark(values.data(), count, bound, count, expected_mask.data()));
      EXPECT_EQ(mask, expected_mask);
      kernels.compact(values.data(), mask.data(), count, expected.data());
      sifted.resize(kept);
      expected.resize(kept);
      EXPECT_EQ(bits(sifted), bits(expected)) << count << " elements";
    }
  }
}

TEST_P(SparseKernelsTest, MarksRandomly) {
  constexpr uint64_t kFirsts[] = {0, 77, (uint64_t{1} << 32) - 100};
  for (const size_t count : kLengths) {
    for (const uint64_t first : kFirsts) {
      for (const double ratio : {1e-12, 0.01, 0.5, 1.0}) {
        const uint64_t limit = random_limit(ratio);
        std::vector<uint64_t> mask(mask_words(count), ~uint64_t{0});
        const size_t sent = kernels.mark_random(5, first, count, limit, mask.data());
        const std::vector<bool> marked = bools(mask, count);
        for (size_t i = 0; i < count; ++i) {
          const uint64_t index = first + i;
          const uint32_t random =
              random_bits(random_stream(5, index), static_cast<uint32_t>(index));
          EXPECT_EQ(marked[i], random < limit) << i << " of " << count;
        }
        EXPECT_EQ(sent, set_in(marked));
      }
    }
  }
}

TEST_P(SparseKernelsTest, MarksTheLargestOfEachGroup) {
  for (const size_t count : kLengths) {
    for (const std::vector<float>& values : {normal(count, 3), awkward(count, 4)}) {
      for (const int m : {2, 4, 32}) {
        for (const int n : {1, m / 2, m - 1}) {
          for (const size_t head : {size_t{1}, static_cast<size_t>(m)}) {
            std::vector<uint64_t> mask(mask_words(count), ~uint64_t{0});
            const size_t sent = kernels.mark_largest(values.data(), count, head, n, m, mask.data());
            const std::vector<bool> marked = bools(mask, count);
            EXPECT_EQ(sent, set_in(marked));
            for (size_t begin = 0, end = std::min(head, count); begin < count;
                 begin = end, end = std::min(begin + static_cast<size_t>(m), count)) {
              std::vector<size_t> order(end - begin);
              std::iota(order.begin(), order.end(), begin);
              std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
                return magnitude_bits(values[a]) > magnitude_bits(values[b]);
              });
              for (size_t rank = 0; rank < order.size(); ++rank) {
                const float value = values[order[rank]];
                const bool expected =
                    !std::isfinite(value) || (rank < static_cast<size_t>(n) && value != 0);
                EXPECT_EQ(marked[order[rank]], expected);
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(SparseKernelsTest, NormsNeitherOverflowNorVanish) {
  for (const size_t count : kLengths) {
    for (const float scale : {1.0F, 1e-40F, 1e30F}) {
      std::vector<float> values = normal(count, 7);
      double expected = 0;
      for (float& value : values) {
        value *= scale;
        expected += static_cast<double>(value) * static_cast<double>(value);
      }
      const float norm = kernels.norm(values.data(), count);
      EXPECT_EQ(float_to_bits(norm),
                float_to_bits(sparse_kernels().back()->norm(values.data(), count)));
      EXPECT_NEAR(norm, std::sqrt(expected), std::sqrt(expected) * 1e-6 + 1e-45) << count;
    }
  }
  const std::vector<float> bad = {1, kNaN};
  EXPECT_TRUE(std::isnan(kernels.norm(bad.data(), 2)));
}

TEST_P(SparseKernelsTest, CompactsAndExpands) {
  std::mt19937_64 random(8);
  for (const size_t count : kLengths) {
    for (const int density : {0, 1, 50, 99, 100}) {
      const std::vector<float> values = awkward(count, 9);
      std::vector<uint64_t> mask(mask_words(count));
      std::vector<float> expected;
      for (size_t i = 0; i < count; ++i) {
        if (static_cast<int>(random() % 100) >= density) continue;
        mask[i / 64] |= uint64_t{1} << (i % 64);
        expected.push_back(values[i]);
      }
      std::vector<float> compacted(count);
      const size_t kept = kernels.compact(values.data(), mask.data(), count, compacted.data());
      ASSERT_EQ(kept, expected.size());
      compacted.resize(kept);
      EXPECT_EQ(bits(compacted), bits(expected));

      // The buffer ends where the values do: a sanitizer sees what is read behind.
      const std::vector<float> source(compacted.begin(), compacted.end());
      for (const Expand how : {Expand::kSet, Expand::kStream, Expand::kKeep, Expand::kAdd}) {
        const std::vector<float> before = normal(count, 10);
        std::vector<float> out = before;
        EXPECT_EQ(kernels.expand(source.data(), mask.data(), count, how, out.data()), kept);
        for (size_t i = 0, next = 0; i < count; ++i) {
          const bool sets = how == Expand::kSet || how == Expand::kStream;
          float wanted = sets ? 0 : before[i];
          if ((mask[i / 64] >> (i % 64) & 1) != 0) {
            wanted = how == Expand::kAdd ? before[i] + source[next] : source[next];
            ++next;
          }
          const bool both_nan = std::isnan(wanted) && std::isnan(out[i]);
          EXPECT_TRUE(both_nan || float_to_bits(out[i]) == float_to_bits(wanted)) << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, SparseKernelsTest,
                         testing::ValuesIn(sparse_kernels().begin(), sparse_kernels().end()),
                         [](const auto& each) { return std::string(each.param->isa); });

}  // namespace
}  // namespace q7x2
