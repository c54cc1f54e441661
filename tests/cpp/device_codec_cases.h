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

}  // namespace q7x2::test
