// The value stage of a device against that of the CPU, wherever the device's memory is.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "kernels/codec_cuda.h"
#include "kernels/value_codec.h"

namespace q7x2::test {

/// Numbers of all magnitudes, with an infinity where there are many.
inline std::vector<float> values_for_device(size_t count) {
  std::vector<float> values = wild(count, 1);
  values[count / 2] = count > 1000 ? kInf : 0;
  return values;
}

/// Equal bits; which NaN an addition returns is up to the processor.
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

/// Three messages and the owner's own numbers, which come second, added and encoded again.
template <template <class> class Memory>
void expect_cpu_fold(const std::string& name, size_t count, bool feedback) {
  SCOPED_TRACE(name + ", " + std::to_string(count) + " elements, a fold");
  const ValueKernels& cpu = dispatched_value_kernels();
  const ValueSpec spec = parse_codec(name).value;
  const size_t bytes = value_bytes(spec, count);
  constexpr uint64_t kFirst = 4096;
  constexpr uint64_t kShared = 7;
  std::vector<std::byte> messages(3 * bytes);
  for (size_t n = 0; n < 3; ++n) {
    const std::vector<float> values = wild(count, static_cast<unsigned>(n) + 5);
    cpu.encode(spec,
               {.values = values.data(),
                .count = count,
                .first = kFirst,
                .shared_key = kShared,
                .rounding_key = n},
               messages.data() + n * bytes);
  }
  const std::vector<float> own = wild(count, 9);
  const std::vector<float> residual = normal(count, 2, 0.1F);

  std::vector<float> sum(count);
  std::vector<float> kept = residual;
  std::vector<std::byte> expected(bytes);
  cpu.decode(spec, messages.data(), sum.data(), count, kFirst, kShared, false);
  for (size_t i = 0; i < count; ++i) sum[i] += own[i];
  cpu.decode(spec, messages.data() + bytes, sum.data(), count, kFirst, kShared, true);
  cpu.decode(spec, messages.data() + 2 * bytes, sum.data(), count, kFirst, kShared, true);
  ValueBlock block = {.count = count,
                      .first = kFirst,
                      .error_scale = 0.5F,
                      .shared_key = kShared,
                      .rounding_key = 8};
  ValueBlock there = block;
  block.values = sum.data();
  if (feedback) block.add = block.error = kept.data();
  cpu.encode(spec, block, expected.data());

  const Memory<std::byte> messages_there(messages);
  const Memory<float> own_there(own);
  const Memory<float> kept_there(residual);
  const Memory<std::byte> body_there(std::vector<std::byte>(bytes, std::byte{0}));
  if (feedback) there.add = there.error = kept_there.get();
  FoldSources sources;
  sources.num = 4;
  sources.of[0].body = messages_there.get();
  sources.of[1].values = own_there.get();
  sources.of[2].body = messages_there.get() + bytes;
  sources.of[3].body = messages_there.get() + 2 * bytes;
  fold_values_cuda(spec, sources, there, body_there.get(), nullptr);
  EXPECT_EQ(body_there.copy(), expected);
  EXPECT_TRUE(same_bits(kept_there.copy(), kept));
}

}  // namespace q7x2::test
