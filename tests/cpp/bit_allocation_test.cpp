#include "comm_hooks/compress/bit_allocation.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using Costs = std::vector<std::vector<CodecCost>>;

CodecCost total(const Costs& costs, const std::vector<size_t>& choices) {
  CodecCost sum;
  for (size_t i = 0; i < costs.size(); ++i) {
    sum.bytes += costs[i][choices[i]].bytes;
    sum.error += costs[i][choices[i]].error;
  }
  return sum;
}

/// All choices tried.
double fewest_bytes(const Costs& costs, double budget) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<size_t> choices(costs.size());
  while (true) {
    const CodecCost sum = total(costs, choices);
    if (sum.error <= budget) best = std::min(best, sum.bytes);
    size_t i = 0;
    while (i < choices.size() && ++choices[i] == costs[i].size()) choices[i++] = 0;
    if (i == choices.size()) return best;
  }
}

/// Layers of other sizes and norms; each bit less costs four times the squared error.
Costs random_costs(size_t layers, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> size(100, 10000);
  std::normal_distribution<double> norm;
  Costs costs;
  for (size_t i = 0; i < layers; ++i) {
    const double count = size(random);
    const double square = count * std::exp(2 * norm(random));
    auto& choices = costs.emplace_back();
    for (const int bits : {2, 3, 4, 6, 8}) {
      choices.push_back({count * bits / 8, square * std::pow(4.0, -bits)});
    }
  }
  return costs;
}

TEST(BitAllocation, IsTheBestWithinTheBudget) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Costs costs = random_costs(5, seed);
    double budget = 0;
    for (const auto& choices : costs) budget += choices[2].error;
    const CodecCost sum = total(costs, allocate_bits(costs, budget));
    EXPECT_LE(sum.error, budget) << seed;
    // Errors are rounded up to steps: what is right at a slightly smaller budget is found for sure.
    EXPECT_LE(sum.bytes, fewest_bytes(costs, budget * (1 - 5.0 / kErrorSteps))) << seed;
  }
}

TEST(BitAllocation, GivesSmallNormsFewBits) {
  const Costs costs = {{{1000, 100}, {2000, 1}}, {{1000, 0.1}, {2000, 0.001}}};
  EXPECT_EQ(allocate_bits(costs, 2), (std::vector<size_t>{1, 0}));
}

TEST(BitAllocation, ALayerOfSmallGradientsGetsAsManyBitsAsOneOfLargeOnes) {
  std::vector<GradientCosts> gradients;
  for (const double norm : {1e6, 1.0, 1e-6}) {
    gradients.push_back({norm, {{4, 0.01 * norm}, {2, 0.2 * norm}, {8, 1e-4 * norm}}});
  }
  EXPECT_EQ(choose_codecs(gradients), (std::vector<std::optional<size_t>>{0, 0, 0}));
  gradients[0].choices[1].error = 0;  // as exact, in fewer bytes
  EXPECT_EQ(choose_codecs(gradients)[0], 1);
}

TEST(BitAllocation, NeverLosesMoreThanTheFirstChoicesAndNeverSendsMore) {
  for (const size_t layers : {1, 3, 30, 300, 1000}) {
    const Costs costs = random_costs(layers, static_cast<uint32_t>(layers));
    std::vector<GradientCosts> gradients;
    for (const auto& choices : costs) {
      // The third codec is the first choice.
      GradientCosts& gradient = gradients.emplace_back();
      gradient.norm = 16 * choices[0].error;
      gradient.choices = {choices[2], choices[0], choices[1], choices[3], choices[4]};
    }
    double error = 0, budget = 0, bytes = 0, first_bytes = 0;
    const auto chosen = choose_codecs(gradients);
    for (size_t i = 0; i < layers; ++i) {
      const auto& [norm, choices] = gradients[i];
      error += choices[*chosen[i]].error / norm;
      budget += choices[0].error / norm;
      bytes += choices[*chosen[i]].bytes;
      first_bytes += choices[0].bytes;
    }
    EXPECT_LE(error, budget) << layers;
    EXPECT_LE(bytes, first_bytes) << layers;
  }
}

TEST(BitAllocation, AGradientOfZerosChoosesNothing) {
  const std::vector<GradientCosts> gradients = {{0, {{4, 0}, {2, 0}}}, {1, {{4, 0.1}, {2, 0.2}}}};
  EXPECT_EQ(choose_codecs(gradients), (std::vector<std::optional<size_t>>{std::nullopt, 0}));
}

TEST(BitAllocation, WithoutErrorsTakesTheFewestBytes) {
  const Costs costs = {{{4, 0}, {2, 0}, {3, 0}}};
  EXPECT_EQ(allocate_bits(costs, 0), std::vector<size_t>{1});
}

TEST(BitAllocation, WhereNothingFitsTakesTheLeastError) {
  const Costs costs = {{{1, 9}, {2, 4}, {3, 5}}, {{1, 1}, {2, 2}, {3, 3}}};
  EXPECT_EQ(allocate_bits(costs, 1), (std::vector<size_t>{1, 0}));
}

TEST(BitAllocation, OfNothingIsNothing) {
  EXPECT_TRUE(allocate_bits({}, 1).empty());
}

}  // namespace
}  // namespace q7x2
