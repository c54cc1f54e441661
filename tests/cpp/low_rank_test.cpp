#include "kernels/cpu/low_rank.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/reduce_isa.h"

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

/// That `product`, rows x columns, is the sum over k < terms of left(i, k) right(k, j).
template <typename Left, typename Right>
void expect_product(const std::vector<float>& product, size_t rows, size_t columns, size_t terms,
                    Left left, Right right) {
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      double expected = 0;
      for (size_t k = 0; k < terms; ++k) expected += static_cast<double>(left(i, k)) * right(k, j);
      ASSERT_NEAR(product[i * columns + j], expected, 1e-5);
    }
  }
}

class LowRank : public testing::TestWithParam<Shape> {};

// Written one element after the end, to see that nothing else is.
constexpr float kEnd = 7;

TEST_P(LowRank, AccumulatesAndProjects) {
  const auto [n, m, rank] = GetParam();
  const auto matrix = random_floats(n * m, 1);
  const auto gradient = random_floats(n * m, 2);
  const auto basis = random_floats(rank * m, 3);
  const auto left = random_floats(n * rank, 4);
  const auto right = random_floats(rank * m, 5);
  const OwedMatrix nothing;
  const OwedMatrix unpaid{matrix.data(), nullptr, nullptr};
  const OwedMatrix paid{matrix.data(), left.data(), right.data()};
  for (const OwedMatrix& owed : {nothing, unpaid, paid}) {
    std::vector<float> first_sums;
    std::vector<float> first_product;
    for (const ReduceIsa& isa : reduce_isas()) {
      const LowRankKernels& kernels = low_rank_kernels(isa.name);
      std::vector<float> sums(n * m + 1, kEnd);
      std::vector<float> product(n * rank + 1, kEnd);
      kernels.accumulate(owed, gradient.data(), 0.25F, basis.data(), n, m, rank, sums.data(),
                         product.data());
      EXPECT_EQ(sums.back(), kEnd);
      EXPECT_EQ(product.back(), kEnd);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < m; ++j) {
          double expected = 0.25 * gradient[i * m + j];
          if (owed.matrix != nullptr) expected += matrix[i * m + j];
          for (size_t k = 0; owed.left != nullptr && k < rank; ++k) {
            expected -= static_cast<double>(left[i * rank + k]) * right[k * m + j];
          }
          ASSERT_NEAR(sums[i * m + j], expected, 1e-5);
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

TEST_P(LowRank, WritingDownWhatIsOwedChangesNoBit) {
  const auto [n, m, rank] = GetParam();
  const auto matrix = random_floats(n * m, 1);
  const auto gradient = random_floats(n * m, 2);
  const auto left = random_floats(n * rank, 4);
  const auto right = random_floats(rank * m, 5);
  for (const ReduceIsa& isa : reduce_isas()) {
    const LowRankKernels& kernels = low_rank_kernels(isa.name);
    std::vector<float> at_once(n * m);
    kernels.accumulate({matrix.data(), left.data(), right.data()}, gradient.data(), 0.25F, nullptr,
                       n, m, rank, at_once.data(), nullptr);
    std::vector<float> residual = matrix;
    kernels.accumulate({residual.data(), left.data(), right.data()}, nullptr, 0.25F, nullptr, n, m,
                       rank, residual.data(), nullptr);
    EXPECT_NE(residual, matrix);
    std::vector<float> later(n * m);
    kernels.accumulate({residual.data(), nullptr, nullptr}, gradient.data(), 0.25F, nullptr, n, m,
                       rank, later.data(), nullptr);
    EXPECT_EQ(later, at_once) << isa.name;
  }
}

TEST_P(LowRank, ProjectsColumns) {
  const auto [n, m, rank] = GetParam();
  const auto left = random_floats(n * rank, 1);
  const auto matrix = random_floats(n * m, 2);
  std::vector<float> first;
  for (const ReduceIsa& isa : reduce_isas()) {
    const LowRankKernels& kernels = low_rank_kernels(isa.name);
    std::vector<float> product(rank * m + 1, kEnd);
    kernels.project(left.data(), matrix.data(), n, m, m, rank, product.data());
    EXPECT_EQ(product.back(), kEnd);
    expect_product(
        product, rank, m, n, [&, rank = rank](size_t k, size_t i) { return left[i * rank + k]; },
        [&, m = m](size_t i, size_t j) { return matrix[i * m + j]; });
    const size_t half = m / 2;
    std::vector<float> parts(rank * m + 1, kEnd);
    kernels.project(left.data(), matrix.data(), n, m, half, rank, parts.data());
    kernels.project(left.data(), matrix.data() + half, n, m, m - half, rank, parts.data() + half);
    EXPECT_EQ(parts, product) << isa.name;
    if (first.empty()) first = product;
    EXPECT_EQ(product, first) << isa.name;
  }
}

TEST_P(LowRank, Expands) {
  const auto [n, m, rank] = GetParam();
  const auto left = random_floats(n * rank, 1);
  const auto right = random_floats(rank * m, 2);
  std::vector<float> first;
  for (const ReduceIsa& isa : reduce_isas()) {
    std::vector<float> product(n * m + 1, kEnd);
    low_rank_kernels(isa.name).expand(left.data(), right.data(), n, m, rank, product.data());
    EXPECT_EQ(product.back(), kEnd);
    expect_product(
        product, n, m, rank, [&, rank = rank](size_t i, size_t k) { return left[i * rank + k]; },
        [&, m = m](size_t k, size_t j) { return right[k * m + j]; });
    if (first.empty()) first = product;
    EXPECT_EQ(product, first) << isa.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LowRank,
                         testing::Values(Shape{1, 1, 1}, Shape{3, 17, 2}, Shape{5, 16, 3},
                                         Shape{7, 100, 4}, Shape{4, 33, 5}, Shape{9, 257, 11}));

}  // namespace
}  // namespace q7x2
