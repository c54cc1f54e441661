#include "kernels/low_rank.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/reduce_isa.h"

namespace q7x2 {
namespace {

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Shape {
  size_t n, m, rank;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.n << " x " << shape.m << ", rank " << shape.rank;
}

class LowRank : public testing::TestWithParam<Shape> {};

TEST_P(LowRank, AccumulatesAndProjects) {
  const auto [n, m, rank] = GetParam();
  const auto residual = random_floats(n * m, 1);
  const auto gradient = random_floats(n * m, 2);
  const auto basis = random_floats(rank * m, 3);
  std::vector<float> first_sums;
  std::vector<float> first_product;
  for (const bool has_residual : {false, true}) {
    for (const ReduceIsa& isa : reduce_isas()) {
      // One element more, to see that nothing is written behind the end.
      std::vector<float> sums(n * m + 1, 7);
      std::vector<float> product(n * rank + 1, 7);
      low_rank_kernels(isa.name).accumulate(has_residual ? residual.data() : nullptr,
                                            gradient.data(), 0.25F, basis.data(), n, m, rank,
                                            sums.data(), product.data());
      EXPECT_EQ(sums.back(), 7);
      EXPECT_EQ(product.back(), 7);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < m; ++j) {
          const float kept = has_residual ? residual[i * m + j] : 0;
          ASSERT_EQ(sums[i * m + j], kept + 0.25F * gradient[i * m + j]);
        }
        for (size_t k = 0; k < rank; ++k) {
          double expected = 0;
          for (size_t j = 0; j < m; ++j) {
            expected += static_cast<double>(sums[i * m + j]) * basis[k * m + j];
          }
          ASSERT_NEAR(product[i * rank + k], expected, 1e-5 * static_cast<double>(m));
        }
      }
      if (isa.name == reduce_isas().front().name) {
        first_sums = sums;
        first_product = product;
      }
      EXPECT_EQ(sums, first_sums) << isa.name;
      EXPECT_EQ(product, first_product) << isa.name;
    }
  }
}

TEST_P(LowRank, ExpandsAndSubtracts) {
  const auto [n, m, rank] = GetParam();
  const auto left = random_floats(n * rank, 1);
  const auto right = random_floats(rank * m, 2);
  const auto before = random_floats(n * m, 3);
  std::vector<float> first_gradient;
  for (const ReduceIsa& isa : reduce_isas()) {
    std::vector<float> gradient(n * m + 1, 7);
    std::vector<float> residual = before;
    residual.push_back(7);
    low_rank_kernels(isa.name).expand(left.data(), right.data(), 0.5F, n, m, rank, gradient.data(),
                                      residual.data());
    EXPECT_EQ(gradient.back(), 7);
    EXPECT_EQ(residual.back(), 7);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < m; ++j) {
        float expected = 0;
        for (size_t k = 0; k < rank; ++k) {
          const float term = right[k * m + j] * left[i * rank + k];
          expected += term;
        }
        ASSERT_NEAR(gradient[i * m + j], expected, 1e-5);
        ASSERT_NEAR(residual[i * m + j], before[i * m + j] - 0.5F * gradient[i * m + j], 1e-6);
      }
    }
    std::vector<float> alone(n * m);
    low_rank_kernels(isa.name).expand(left.data(), right.data(), 0.5F, n, m, rank, alone.data(),
                                      nullptr);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), gradient.begin()));
    if (first_gradient.empty()) first_gradient = gradient;
    EXPECT_EQ(gradient, first_gradient) << isa.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LowRank,
                         testing::Values(Shape{1, 1, 1}, Shape{3, 17, 2}, Shape{5, 16, 3},
                                         Shape{7, 100, 4}, Shape{4, 33, 5}, Shape{9, 257, 11}));

}  // namespace
}  // namespace q7x2
