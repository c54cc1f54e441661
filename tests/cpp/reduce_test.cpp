// What `reduce` promises beyond its kernels: which of them runs, the order of the fold, rounding,
// NaN, and what it refuses.
#include "kernels/cpu/reduce.h"

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/reduce_isa.h"

namespace q7x2 {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(ReduceIsaTest, IsChosenByName) {
  EXPECT_STREQ(select_reduce_isa(nullptr).name, reduce_isas().front().name);
  EXPECT_STREQ(select_reduce_isa("").name, reduce_isas().front().name);
  for (const ReduceIsa& isa : reduce_isas()) {
    EXPECT_STREQ(select_reduce_isa(isa.name).name, isa.name);
  }
  EXPECT_STREQ(reduce_isas().back().name, "baseline");
  EXPECT_EQ(message_of([] { select_reduce_isa("sse9"); }),
            "Q7X2_ISA=sse9: expected baseline, avx2 or avx512");
}

TEST(ReduceIsaTest, FollowsTheEnvironment) {
  EXPECT_STREQ(reduce_isa(), select_reduce_isa(std::getenv("Q7X2_ISA")).name);
}

template <class T>
T reduce_values(DType dtype, ReduceKind kind, const std::vector<T>& values, int divisor = 1) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  T result;
  reduce(&result, sources, 1, dtype, kind, divisor);
  return result;
}

template <class T>
float reduce_small(DType dtype, ReduceKind kind, const std::vector<float>& values,
                   int divisor = 1) {
  std::vector<T> elements;
  for (const float value : values) elements.push_back(from_float<T>(value));
  return to_float(reduce_values(dtype, kind, elements, divisor));
}

TEST(ReduceTest, FoldsFromLeftToRight) {
  const auto sum = [](std::vector<float> values) {
    return reduce_values<float>(DType::kFloat32, ReduceKind::kSum, values);
  };
  EXPECT_EQ(sum({1e8f, -1e8f, 1}), 1);
  EXPECT_EQ(sum({1, 1e8f, -1e8f}), 0);
}

TEST(ReduceTest, RoundsSmallFloatsOnce) {
  EXPECT_EQ(reduce_small<Float16>(DType::kFloat16, ReduceKind::kSum, {2048, 1, 1}), 2050);
  EXPECT_EQ(reduce_small<BFloat16>(DType::kBFloat16, ReduceKind::kSum, {256, 1, 1}), 258);
  EXPECT_EQ(reduce_small<Float8E4M3FN>(DType::kFloat8E4M3FN, ReduceKind::kSum, {16, 1, 1}), 18);
  EXPECT_EQ(reduce_small<Float8E5M2>(DType::kFloat8E5M2, ReduceKind::kSum, {8, 1, 1}), 10);
}

TEST(ReduceTest, DividesBeforeRounding) {
  EXPECT_EQ(reduce_small<Float16>(DType::kFloat16, ReduceKind::kSum, {65504, 65504}, 2), 65504);
  EXPECT_EQ(reduce_small<Float8E4M3FN>(DType::kFloat8E4M3FN, ReduceKind::kSum, {448, 448}, 2), 448);
}

TEST(ReduceTest, WrapsIntegers) {
  EXPECT_EQ(reduce_values<uint8_t>(DType::kUInt8, ReduceKind::kSum, {200, 100}), 44);
  EXPECT_EQ(reduce_values<int8_t>(DType::kInt8, ReduceKind::kSum, {127, 1}), -128);
  EXPECT_EQ(reduce_values<uint16_t>(DType::kUInt16, ReduceKind::kProduct, {65535, 65535}), 1);
  EXPECT_EQ(reduce_values<int32_t>(DType::kInt32, ReduceKind::kProduct, {1 << 30, 4}), 0);
  const int64_t largest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduce_values<int64_t>(DType::kInt64, ReduceKind::kSum, {largest, 1}), -largest - 1);
}

TEST(ReduceTest, TruncatesIntegerMeans) {
  EXPECT_EQ(reduce_values<int8_t>(DType::kInt8, ReduceKind::kSum, {-4, -3}, 2), -3);
  EXPECT_EQ(reduce_values<int8_t>(DType::kInt8, ReduceKind::kSum, {100}, 1000), 0);
  const int32_t smallest = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(reduce_values<int32_t>(DType::kInt32, ReduceKind::kSum, {smallest, 1}, 3),
            (smallest + 1) / 3);
  EXPECT_EQ(reduce_values<uint64_t>(DType::kUInt64, ReduceKind::kSum, {~uint64_t{0}}, 2),
            ~uint64_t{0} / 2);
}

TEST(ReduceTest, MinAndMaxPropagateNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceKind kind : {ReduceKind::kMin, ReduceKind::kMax}) {
    for (size_t position = 0; position < 3; ++position) {
      std::vector<float> values = {1, -2, 3};
      values[position] = nan;
      EXPECT_TRUE(std::isnan(reduce_values<float>(DType::kFloat32, kind, values)));
      EXPECT_TRUE(
          std::isnan(reduce_values<double>(DType::kFloat64, kind, {values.begin(), values.end()})));
      EXPECT_TRUE(std::isnan(reduce_small<Float16>(DType::kFloat16, kind, values)));
      EXPECT_TRUE(std::isnan(reduce_small<BFloat16>(DType::kBFloat16, kind, values)));
      EXPECT_TRUE(std::isnan(reduce_small<Float8E4M3FN>(DType::kFloat8E4M3FN, kind, values)));
      EXPECT_TRUE(std::isnan(reduce_small<Float8E5M2FNUZ>(DType::kFloat8E5M2FNUZ, kind, values)));
    }
  }
}

TEST(ReduceTest, MultipliesComplexNumbers) {
  using Complex = std::complex<float>;
  EXPECT_EQ(
      reduce_values<Complex>(DType::kComplex64, ReduceKind::kProduct, {{1, 2}, {3, -1}, {0, 1}}),
      Complex(-5, 5));
}

TEST(ReduceTest, CopiesASingleSource) {
  // Whatever the bits: a copy does not make another NaN of a NaN, nor another true of a true.
  EXPECT_EQ(reduce_values<uint16_t>(DType::kFloat16, ReduceKind::kSum, {0xFDCB}), 0xFDCB);
  EXPECT_EQ(reduce_values<uint8_t>(DType::kBool, ReduceKind::kSum, {2}), 2);
  uint32_t value = 7;
  const void* const source = &value;
  reduce(&value, {&source, 1}, 1, DType::kUInt32, ReduceKind::kMax);
  EXPECT_EQ(value, 7u);
}

TEST(ReduceTest, TakesNoElements) {
  const void* const sources[] = {nullptr, nullptr};
  reduce(nullptr, sources, 0, DType::kFloat32, ReduceKind::kSum, 2);
}

TEST(ReduceTest, RefusesWhatMakesNoSense) {
  const auto message = [](DType dtype, ReduceKind kind, int divisor = 1) {
    return message_of([&] { check_reducible(dtype, kind, divisor); });
  };
  EXPECT_EQ(message(DType::kFloat32, ReduceKind::kBitAnd),
            "Cannot use ReduceOp.BAND with non-integral dtype");
  EXPECT_EQ(message(DType::kBFloat16, ReduceKind::kBitOr),
            "Cannot use ReduceOp.BOR with non-integral dtype");
  EXPECT_EQ(message(DType::kComplex64, ReduceKind::kBitXor),
            "Cannot use ReduceOp.BXOR with non-integral dtype");
  EXPECT_EQ(message(DType::kComplex64, ReduceKind::kMax),
            "ReduceOp.MAX is not supported for complex dtypes");
  EXPECT_EQ(message(DType::kComplex128, ReduceKind::kMin),
            "ReduceOp.MIN is not supported for complex dtypes");
  EXPECT_EQ(message(DType::kBool, ReduceKind::kSum, 4), "ReduceOp.AVG is not supported for bool");
  EXPECT_EQ(message(DType::kBytes, ReduceKind::kSum),
            "ReduceOp.SUM is not supported for opaque bytes");
  EXPECT_EQ(message(DType::kFloat32, ReduceKind::kSum, 0),
            "a reduction's divisor must be positive, not 0");
  EXPECT_EQ(message_of([] { reduce(nullptr, {}, 1, DType::kFloat32, ReduceKind::kSum); }),
            "a reduction needs at least one source");
  // The memory stays untouched: there is none.
  const void* const sources[] = {nullptr, nullptr};
  message_of([&] { reduce(nullptr, sources, 8, DType::kFloat32, ReduceKind::kBitAnd); });
}

}  // namespace
}  // namespace q7x2
