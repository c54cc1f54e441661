// Compares the value stage of a device with that of the CPU, for any kind of device memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cuda/codec_cuda.h"

namespace q7x2::test {

/// Numbers of all magnitudes; if there are many, one is infinite.
inline std::vector<float> values_for_device(size_t count) {
  std::vector<float> values = wild(count, 1);
  values[count / 2] = count > 1000 ? kInf : 0;
  return values;
}

/// Equal bits; which NaN an addition returns depends on the processor.
inline void expect_same_numbers(const std::vector<float>& actual,
                                const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool same = std::isnan(expected[i])
                          ? std::isnan(actual[i])
                          : std::memcmp(&expected[i], &actual[i], sizeof(float)) == 0;
    ASSERT_TRUE(same) << "element " << i << ": " << actual[i] << ", not " << expected[i];
  }
}

/// Encodes `count` numbers with the codec `name`, with and without an error buffer, and decodes
/// them, with and without adding. `Memory<T>(values)` is a copy in the device's memory, with `get`
/// and `copy`.
template <template <class> class Memory>
void expect_cpu_bits(const std::string& name, size_t count) {
  SCOPED_TRACE(name + ", " + std::to_string(count) + " elements");
  const ValueKernels& cpu = dispatched_value_kernels();
  const ValueSpec spec = parse_codec(name).value;
  const std::vector<float> values = values_for_device(count);
  const std::vector<float> error = normal(count, 2, 0.1F);
  for (const bool feedback : {false, true}) {
    ValueBlock block = {
        .count = count, .first = 12345, .error_scale = 0.9F, .shared_key = 7, .rounding_key = 8};
    std::vector<std::byte> body(value_bytes(spec, count));
    const Memory<float> values_there(values);
    const Memory<float> error_there(error);
    const Memory<std::byte> body_there(body);
    ValueBlock there = block;
    there.values = values_there.get();
    if (feedback) there.add = there.error = error_there.get();
    encode_values_cuda(spec, there, body_there.get(), nullptr);

    std::vector<float> kept = error;
    block.values = values.data();
    if (feedback) block.add = block.error = kept.data();
    cpu.encode(spec, block, body.data());
    EXPECT_EQ(body_there.copy(), body);
    EXPECT_TRUE(same_bits(error_there.copy(), kept));

    for (const bool add : {false, true}) {
      std::vector<float> out = error;
      const Memory<float> out_there(out);
      decode_values_cuda(spec, body_there.get(), out_there.get(), count, 12345, 7, add, nullptr);
      cpu.decode(spec, body.data(), out.data(), count, 12345, 7, add);
      expect_same_numbers(out_there.copy(), out);
    }
  }
}

/// Integers that add, from their maxima to the decoded mean. `offset`: of all memory, in elements.
template <template <class> class Memory, class Int>
void expect_cpu_integers(const std::string& name, size_t count, size_t offset, bool feedback) {
  SCOPED_TRACE(name + ", " + std::to_string(count) + " elements, offset " + std::to_string(offset));
  const ValueSpec spec = parse_codec(name).value;
  const int levels = sum_int_levels(spec, 3);
  const size_t end = offset + count;
  const std::vector<float> values = values_for_device(end);
  std::vector<float> kept = normal(end, 2, 0.1F);
  const Memory<float> values_there(values);
  const Memory<float> kept_there(kept);
  SumIntBlock block = {.values = values.data() + offset, .count = count, .rounding_key = 8};
  SumIntBlock there = block;
  there.values = values_there.get() + offset;
  if (feedback) {
    block.errors = kept.data() + offset;
    there.errors = kept_there.get() + offset;
  }

  std::vector<float> maxima(num_groups(spec, count));
  const Memory<float> maxima_there(maxima);
  group_maxima_cuda(spec, there, maxima_there.get(), nullptr);
  group_maxima(spec, block, maxima.data());
  expect_same_numbers(maxima_there.copy(), maxima);

  std::vector<Int> codes(end);
  const Memory<Int> codes_there(codes);
  encode_sum_int_cuda(spec, levels, there, maxima_there.get(), codes_there.get() + offset, nullptr);
  encode_sum_int(spec, levels, block, maxima.data(), codes.data() + offset);
  EXPECT_EQ(codes_there.copy(), codes);
  EXPECT_TRUE(same_bits(kept_there.copy(), kept));

  std::vector<float> out(end);
  const Memory<float> out_there(out);
  decode_sum_int_cuda(spec, levels, codes_there.get() + offset, maxima_there.get(), 3,
                      out_there.get() + offset, count, nullptr);
  decode_sum_int(spec, levels, codes.data() + offset, maxima.data(), 3, out.data() + offset, count);
  expect_same_numbers(out_there.copy(), out);
}
template <template <class> class Memory>
void expect_cpu_integers(size_t count, size_t offset) {
  for (const bool feedback : {false, true}) {
    for (const std::string options : {"", ":sr", ":g=32"}) {
      expect_cpu_integers<Memory, int8_t>("sumint8" + options, count, offset, feedback);
      expect_cpu_integers<Memory, int16_t>("sumint16" + options, count, offset, feedback);
      expect_cpu_integers<Memory, int32_t>("sumint32" + options, count, offset, feedback);
    }
  }
}

/// Messages at every offset from an aligned address: encoded, decoded and added to other numbers.
template <template <class> class Memory>
void expect_cpu_bits_at_offset(const std::string& name, size_t count, size_t offset) {
  SCOPED_TRACE(name + ", " + std::to_string(count) + " elements, offset " + std::to_string(offset));
  const ValueKernels& cpu = dispatched_value_kernels();
  const ValueSpec spec = parse_codec(name).value;
  const std::vector<float> values = normal(count, 1);
  ValueBlock block = {.values = values.data(), .count = count, .shared_key = 7, .rounding_key = 8};
  std::vector<std::byte> body(value_bytes(spec, count));
  cpu.encode(spec, block, body.data());
  std::vector<float> out = normal(count, 2);
  const std::vector<float> shifted = [&] {
    std::vector<float> all(1);
    all.insert(all.end(), out.begin(), out.end());
    return all;
  }();

  const Memory<float> values_there(values);
  const Memory<std::byte> body_there(std::vector<std::byte>(body.size() + offset, std::byte{0}));
  const Memory<float> out_there(shifted);
  block.values = values_there.get();
  encode_values_cuda(spec, block, body_there.get() + offset, nullptr);
  std::vector<std::byte> expected(offset);
  expected.insert(expected.end(), body.begin(), body.end());
  EXPECT_EQ(body_there.copy(), expected);
  decode_values_cuda(spec, body_there.get() + offset, out_there.get() + 1, count, 0, 7, true,
                     nullptr);
  cpu.decode(spec, body.data(), out.data(), count, 0, 7, true);
  const std::vector<float> result = out_there.copy();
  expect_same_numbers({result.begin() + 1, result.end()}, out);
}

/// Three messages of other ranks, and the owner's own numbers, which are the second source of the
/// sum.
struct FoldCase {
  static constexpr uint64_t kFirst = 4096;
  static constexpr uint64_t kShared = 7;
  static constexpr float kDivisor = 3;  // not a power of two, so the quotient is rounded

  FoldCase(const std::string& name, size_t count)
      : spec(parse_codec(name).value),
        bytes(value_bytes(spec, count)),
        messages(3 * bytes),
        own(wild(count, 9)),
        residual(normal(count, 2, 0.1F)) {
    for (size_t n = 0; n < 3; ++n) {
      const std::vector<float> values = wild(count, static_cast<unsigned>(n) + 5);
      dispatched_value_kernels().encode(spec,
                                        {.values = values.data(),
                                         .count = count,
                                         .first = kFirst,
                                         .shared_key = kShared,
                                         .rounding_key = n},
                                        messages.data() + n * bytes);
    }
  }

  /// Computes the sum step by step on the CPU, in the order of executor/call/block_coder.cpp.
  std::vector<float> sum(bool feedback) const {
    std::vector<float> sum = feedback ? residual : std::vector<float>(own.size());
    const auto decode = [&](size_t n, bool add) {
      dispatched_value_kernels().decode(spec, messages.data() + n * bytes, sum.data(), sum.size(),
                                        kFirst, kShared, add);
    };
    decode(0, feedback);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    decode(1, true);
    decode(2, true);
    for (float& each : sum) each /= kDivisor;
    return sum;
  }

  Fold fold(const std::byte* messages_there, const float* own_there) const {
    Fold fold;
    fold.num = 4;
    fold.divisor = kDivisor;
    fold.of[0].body = messages_there;
    fold.of[1].values = own_there;
    fold.of[2].body = messages_there + bytes;
    fold.of[3].body = messages_there + 2 * bytes;
    return fold;
  }

  ValueSpec spec;
  size_t bytes;  // bytes per message
  std::vector<std::byte> messages;
  std::vector<float> own;
  std::vector<float> residual;
};

/// Expects the mean as a message.
template <template <class> class Memory>
void expect_cpu_fold(const std::string& name, size_t count, bool feedback) {
  SCOPED_TRACE(name + ", " + std::to_string(count) + " elements, a fold");
  const FoldCase given(name, count);
  const std::vector<float> sum = given.sum(feedback);
  std::vector<float> kept = given.residual;
  std::vector<std::byte> expected(given.bytes);
  ValueBlock block = {.count = count,
                      .first = FoldCase::kFirst,
                      .error_scale = FoldCase::kDivisor,
                      .shared_key = FoldCase::kShared,
                      .rounding_key = 8};
  ValueBlock there = block;
  block.values = sum.data();
  if (feedback) block.error = kept.data();
  dispatched_value_kernels().encode(given.spec, block, expected.data());

  const Memory<std::byte> messages_there(given.messages);
  const Memory<float> own_there(given.own);
  const Memory<float> kept_there(given.residual);
  const Memory<std::byte> body_there(std::vector<std::byte>(given.bytes, std::byte{0}));
  if (feedback) there.add = there.error = kept_there.get();
  fold_values_cuda(given.spec, given.fold(messages_there.get(), own_there.get()), there,
                   {.body = body_there.get()}, nullptr);
  EXPECT_EQ(body_there.copy(), expected);
  EXPECT_TRUE(same_bits(kept_there.copy(), kept));
}

/// Expects the mean as numbers. It then contains the residual, unless the residual is not finite.
template <template <class> class Memory>
void expect_cpu_sum(const std::string& name, size_t count) {
  SCOPED_TRACE(name + ", " + std::to_string(count) + " elements, a sum");
  const FoldCase given(name, count);
  const std::vector<float> sum = given.sum(true);
  std::vector<float> kept = given.residual;
  for (size_t i = 0; i < count; ++i) kept[i] = std::isfinite(sum[i]) ? 0 : kept[i];

  const Memory<std::byte> messages_there(given.messages);
  const Memory<float> own_there(given.own);
  const Memory<float> kept_there(given.residual);
  const Memory<float> sum_there(std::vector<float>(count, 0));
  fold_values_cuda(given.spec, given.fold(messages_there.get(), own_there.get()),
                   {.count = count,
                    .first = FoldCase::kFirst,
                    .add = kept_there.get(),
                    .error = kept_there.get(),
                    .shared_key = FoldCase::kShared},
                   {.values = sum_there.get()}, nullptr);
  expect_same_numbers(sum_there.copy(), sum);
  EXPECT_TRUE(same_bits(kept_there.copy(), kept));
}

}  // namespace q7x2::test
