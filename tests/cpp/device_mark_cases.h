// Compares the select stage of a device with that of the CPU, for any kind of device memory.
#pragma once

#include <bit>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "kernels/cuda/codec_cuda.h"
#include "mark_cases.h"

namespace q7x2::test {

/// Marks the elements of values + error that the codec sends, takes them, and puts them back.
/// `Memory<T>(values)` is a copy in the device's memory, with `get` and `copy`.
template <template <class> class Memory>
void expect_cpu_marks(const std::string& name, const std::vector<float>& values, bool feedback) {
  SCOPED_TRACE(name + ", " + std::to_string(values.size()) + " elements" +
               (feedback ? ", with errors" : ""));
  constexpr uint64_t kKey = 7;
  const size_t count = values.size();
  const CodecSpec spec = parse_codec(name);
  const std::vector<float> error = feedback ? normal(count, 2, 0.1F) : std::vector<float>(count);
  std::vector<float> sums = values;
  for (size_t i = 0; feedback && i < count; ++i) sums[i] += error[i];
  const MarksOfTheCpu expected = marks_of_the_cpu(spec, sums, kKey);

  const Memory<float> values_there(values);
  const Memory<float> error_there(error);
  const Memory<uint64_t> mask_there(std::vector<uint64_t>(expected.mask.size(), ~uint64_t{0}));
  const Memory<uint32_t> before_there(std::vector<uint32_t>(expected.before.size()));
  const Memory<MarkCounts> counts_there(std::vector<MarkCounts>(1));
  const Memory<std::byte> scratch_there(std::vector<std::byte>(mark_scratch_bytes(count)));
  const Marks marks = {count, mask_there.get(), before_there.get()};
  mark_cuda(spec, {values_there.get(), feedback ? error_there.get() : nullptr, count, kKey}, marks,
            counts_there.get(), scratch_there.get(), nullptr);
  EXPECT_EQ(mask_there.copy(), expected.mask);
  EXPECT_EQ(before_there.copy(), expected.before);
  EXPECT_EQ(counts_there.copy()[0].marked, expected.counts.marked);
  EXPECT_EQ(counts_there.copy()[0].extreme, expected.counts.extreme);

  std::vector<float> taken;
  std::vector<float> kept = error;
  std::vector<float> put(count);
  for (size_t i = 0; i < count; ++i) {
    const bool is_marked = (expected.mask[i / 64] >> (i % 64) & 1) != 0;
    if (is_marked) taken.push_back(sums[i]);
    if (feedback) kept[i] = is_marked ? 0 : sums[i];
    put[i] = is_marked ? sums[i] : 0;
  }
  const Memory<float> taken_there(std::vector<float>(taken.size() + 1));
  take_marked_cuda(marks, values_there.get(), feedback ? error_there.get() : nullptr,
                   taken_there.get(), nullptr);
  taken.push_back(0);
  EXPECT_TRUE(same_bits(taken_there.copy(), taken));
  EXPECT_TRUE(same_bits(error_there.copy(), kept));

  const Memory<float> out_there(std::vector<float>(count, 5));
  put_marked_cuda(marks, taken_there.get(), out_there.get(), /*add=*/false, nullptr);
  EXPECT_TRUE(same_bits(out_there.copy(), put));
  put_marked_cuda(marks, taken_there.get(), out_there.get(), /*add=*/true, nullptr);
  for (float& each : put) each += each;
  EXPECT_TRUE(same_bits(out_there.copy(), put));
}

template <template <class> class Memory>
void expect_cpu_marks(const std::string& name, size_t count) {
  for (const bool feedback : {false, true}) {
    expect_cpu_marks<Memory>(name, normal(count, 1), feedback);
  }
  expect_cpu_marks<Memory>(name, few_magnitudes(count), false);
  std::vector<float> extremes = normal(count, 1);
  extremes[count / 2] = kInf;
  extremes[count / 3] = -0x1p60F;
  expect_cpu_marks<Memory>(name, extremes, false);
}

}  // namespace q7x2::test
