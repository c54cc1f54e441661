// Integers that add: the sum of all ranks is within the bound, and blocks of floating-point numbers
// with a common exponent lose nothing that their step divides.
#include "kernels/codec/sum_int.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value_elements.h"

namespace q7x2 {
namespace {

using Ranks = std::vector<std::vector<float>>;

ValueSpec spec_of(const std::string& codec) {
  return Codec::make(codec)->spec().value;
}

struct Sum {
  std::vector<float> values;
  std::vector<float> maxima;
  Ranks errors;  // by rank
  int levels = 0;
};

template <class Int>
Sum add_as(const ValueSpec& spec, const Ranks& ranks, bool keeps_errors) {
  const size_t count = ranks[0].size();
  const size_t groups = num_groups(spec, count);
  Sum sum{.values = std::vector<float>(count),
          .maxima = std::vector<float>(groups),
          .errors = Ranks(ranks.size(), std::vector<float>(count)),
          .levels = sum_int_levels(spec, static_cast<int>(ranks.size()))};
  std::vector<SumIntBlock> blocks;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    blocks.push_back({.values = ranks[rank].data(),
                      .errors = keeps_errors ? sum.errors[rank].data() : nullptr,
                      .count = count,
                      .rounding_key = rank});
    std::vector<float> own(groups);
    group_maxima(spec, blocks.back(), own.data());
    for (size_t g = 0; g < groups; ++g) {
      if (std::isnan(own[g]) || own[g] > sum.maxima[g]) sum.maxima[g] = own[g];
    }
  }
  std::vector<Int> total(count);
  for (const SumIntBlock& block : blocks) {
    std::vector<Int> codes(count);
    encode_sum_int(spec, sum.levels, block, sum.maxima.data(), codes.data());
    for (size_t i = 0; i < count; ++i) total[i] = static_cast<Int>(total[i] + codes[i]);
  }
  decode_sum_int(spec, sum.levels, total.data(), sum.maxima.data(), 1, sum.values.data(), count);
  return sum;
}

Sum add(const ValueSpec& spec, const Ranks& ranks, bool keeps_errors = false) {
  if (spec.bits == 8) return add_as<int8_t>(spec, ranks, keeps_errors);
  if (spec.bits == 16) return add_as<int16_t>(spec, ranks, keeps_errors);
  return add_as<int32_t>(spec, ranks, keeps_errors);
}

double step_of(const ValueSpec& spec, const Sum& sum, size_t element) {
  const double step = sum.maxima[element / spec.group] / static_cast<double>(sum.levels);
  return spec.bits == 32 ? std::exp2(std::ceil(std::log2(step))) : step;
}

Ranks random_ranks(size_t ranks, size_t count, float size) {
  std::mt19937 random(static_cast<unsigned>(ranks * 1000 + count));
  std::normal_distribution<float> normal(0, size);
  Ranks all(ranks, std::vector<float>(count));
  for (auto& each : all) std::ranges::generate(each, [&] { return normal(random); });
  return all;
}

class SumInt : public testing::TestWithParam<const char*> {};

std::string test_name(const testing::TestParamInfo<const char*>& each) {
  std::string name = each.param;
  std::ranges::replace_if(
      name, [](char c) { return c == ':' || c == '='; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bits, SumInt,
                         testing::Values("sumint8", "sumint16", "sumint32", "sumint32:g=32",
                                         "sumint16:sr", "sumint32:sr"),
                         test_name);

TEST_P(SumInt, SumsAreWithinTheBound) {
  const ValueSpec spec = spec_of(GetParam());
  for (const size_t n : {1U, 2U, 7U}) {
    for (const float size : {1e-20F, 1.0F, 1e20F}) {
      const Ranks ranks = random_ranks(n, 3001, size);
      const Sum sum = add(spec, ranks);
      double largest = 0;  // error, in units of the bound
      for (size_t i = 0; i < 3001; ++i) {
        double exact = 0;
        for (const auto& rank : ranks) exact += rank[i];
        const double each = step_of(spec, sum, i) * (spec.stochastic ? 1 : 0.5);
        const double rounding = std::abs(exact) * 0x1p-23;
        const double error = std::abs(sum.values[i] - exact);
        // 8 and 16 bits: fp32 arithmetic rounds the steps, too.
        const double slack = spec.bits == 32 ? 0 : 0.01 * each;
        ASSERT_LE(error, static_cast<double>(n) * (each + slack) + rounding) << i << " of " << n;
        largest = std::max(largest, error / (static_cast<double>(n) * each + rounding));
      }
      EXPECT_GT(largest, 0.25) << "the bound says nothing";
    }
  }
}

TEST_P(SumInt, ErrorsAreWhatTheSumLacks) {
  const ValueSpec spec = spec_of(GetParam());
  const Ranks ranks = random_ranks(3, 2050, 1);
  const Sum sum = add(spec, ranks, /*keeps_errors=*/true);
  for (size_t i = 0; i < 2050; ++i) {
    double given = 0;
    double kept = 0;
    for (size_t rank = 0; rank < 3; ++rank) {
      given += ranks[rank][i];
      kept += sum.errors[rank][i];
    }
    ASSERT_NEAR(sum.values[i] + kept, given, 1e-6) << i;
  }
}

TEST_P(SumInt, WhatIsNotFiniteIsNanInItsGroupAlone) {
  const ValueSpec spec = spec_of(GetParam());
  Ranks ranks = random_ranks(2, 2048, 1);
  ranks[1][1500] = std::numeric_limits<float>::infinity();
  const Sum sum = add(spec, ranks);
  const size_t group = 1500U / spec.group;
  for (size_t i = 0; i < 2048; ++i) ASSERT_EQ(std::isnan(sum.values[i]), i / spec.group == group);
}

TEST(SumInt32, MultiplesOfTheStepLoseNothing) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> integer(-(1 << 20), 1 << 20);
  for (const int exponent : {-60, -24, 0, 90}) {
    Ranks ranks(5, std::vector<float>(1024));
    for (auto& rank : ranks) {
      for (float& value : rank) value = std::ldexp(static_cast<float>(integer(random)), exponent);
    }
    const Sum sum = add(spec_of("sumint32"), ranks);
    for (size_t i = 0; i < 1024; ++i) {
      float exact = 0;
      for (const auto& rank : ranks) exact += rank[i];
      ASSERT_EQ(sum.values[i], exact) << i;
    }
  }
}

TEST(SumInt32, TheLargestSumsFit) {
  const std::vector<float> extremes = {1, -1, 0.5F, std::nextafter(1.0F, 0.0F)};
  for (const size_t n : {1U, 2U, 3U, 1000U, 4096U}) {
    const Ranks ranks(n, extremes);
    const Sum sum = add(spec_of("sumint32"), ranks);
    const double step = step_of(spec_of("sumint32"), sum, 0);
    for (size_t i = 0; i < extremes.size(); ++i) {
      const double exact = static_cast<double>(n) * extremes[i];
      const double bound = static_cast<double>(n) * step / 2 + std::abs(exact) * 0x1p-23;
      ASSERT_NEAR(sum.values[i], exact, bound) << n;
    }
  }
}

TEST(SumIntNames, TooManyRanksAreToldTheNextName) {
  EXPECT_EQ(sum_int_levels(spec_of("sumint8"), 127), 1);
  EXPECT_EQ(sum_int_levels(spec_of("sumint32"), 1 << 20), (1 << 11) - 1);
  try {
    sum_int_levels(spec_of("sumint8"), 128);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("expected sumint16"), std::string::npos);
  }
}

}  // namespace
}  // namespace q7x2
