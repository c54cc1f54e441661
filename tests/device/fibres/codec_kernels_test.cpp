// CUDA's codec kernels, run as fibres: the bits of the CPU's codec, in each order of threads, and
// no races.
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "device_codec_cases.h"
#include "device_mark_cases.h"
#include "level.h"
#include "orders.h"

namespace q7x2::test {
namespace {

/// The fibres' device memory is that of the CPU.
template <class T>
class OnFibres {
 public:
  explicit OnFibres(std::vector<T> values) : values_(std::move(values)) {}
  T* get() const { return values_.data(); }
  std::vector<T> copy() const { return values_; }

 private:
  mutable std::vector<T> values_;
};

class CodecKernels : public testing::TestWithParam<std::string> {};

TEST_P(CodecKernels, AgreeWithTheCpuBitByBit) {
  // ThreadSanitizer takes fifty times as long as usual for a change of fibres.
  const bool slow = fibres::race_finder() == fibres::RaceFinder::kThreadSanitizer;
  const std::vector<size_t> counts =
      slow || !is_nightly() ? std::vector<size_t>{31, 513} : std::vector<size_t>{1, 31, 513, 2049};
  fibres::test::in_all_orders([&] {
    for (const size_t count : counts) expect_cpu_bits<OnFibres>(GetParam(), count);
  });
}

TEST_P(CodecKernels, ReadAndWriteAtAnyByte) {
  for (const size_t offset : {1, 2, 4}) {
    for (const size_t count : {37, 1024}) {
      expect_cpu_bits_at_offset<OnFibres>(GetParam(), count, offset);
    }
  }
}

TEST_P(CodecKernels, FoldAsTheCpuDoes) {
  const bool slow = fibres::race_finder() == fibres::RaceFinder::kThreadSanitizer;
  const std::vector<size_t> counts =
      slow || !is_nightly() ? std::vector<size_t>{100} : std::vector<size_t>{1, 100, 1500};
  fibres::test::in_all_orders([&] {
    for (const size_t count : counts) {
      for (const bool feedback : {false, true}) {
        expect_cpu_fold<OnFibres>(GetParam(), count, feedback);
      }
      expect_cpu_sum<OnFibres>(GetParam(), count);
    }
  });
}

TEST_P(CodecKernels, AreReportedWithoutTheirBarriers) {
  if (fibres::race_finder() != fibres::RaceFinder::kAccesses) GTEST_SKIP() << "another sanitizer";
  const ValueSpec spec = parse_codec(GetParam()).value;
  if (spec.group == 0) GTEST_SKIP() << "a cast needs no barrier";
  if (spec.hadamard && !spec.stochastic) GTEST_SKIP() << "the sums of its codes order the lanes";
  const std::vector<float> values = normal(2048, 1);
  std::vector<std::byte> body(value_bytes(spec, values.size()));
  const fibres::WithoutBarriers without_barriers;
  fibres::test::in_all_orders([&] {
    EXPECT_THROW(encode_values_cuda(spec, {.values = values.data(), .count = values.size()},
                                    body.data(), nullptr),
                 fibres::KernelError);
  });
}

TEST(CodecKernel, FindsWhatIsNotFinite) {
  for (const size_t count : {1, 31, 5000}) {
    std::vector<float> values = normal(count, 1);
    uint32_t found = 0;
    find_nonfinite_cuda(values.data(), count, &found, nullptr);
    EXPECT_EQ(found, 0U) << count << " numbers";
    for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
      values[count / 2] = bad;
      found = 0;
      find_nonfinite_cuda(values.data(), count, &found, nullptr);
      EXPECT_EQ(found, 1U) << bad << " among " << count << " numbers";
    }
  }
}

TEST(CodecKernel, AddsIntegersAsTheCpuDoes) {
  fibres::test::in_all_orders([&] {
    for (const size_t count : {1, 37, 2049}) expect_cpu_integers<OnFibres>(count, 0);
  });
  for (const size_t offset : {1, 2}) expect_cpu_integers<OnFibres>(1500, offset);
}

TEST(CodecKernel, SelectsAsTheCpuDoes) {
  const bool slow = fibres::race_finder() == fibres::RaceFinder::kThreadSanitizer;
  const std::vector<size_t> counts =
      slow ? std::vector<size_t>{37}
           : at_level<std::vector<size_t>>({37, 9000}, {1, 37, 9000, 20000});
  for (const std::string& name : kMarkedCodecs) {
    fibres::test::in_all_orders([&] {
      for (const size_t count : counts) expect_cpu_marks<OnFibres>(name, count);
    });
  }
}

TEST(CodecKernel, SelectionIsReportedWithoutItsBarriers) {
  if (fibres::race_finder() != fibres::RaceFinder::kAccesses) GTEST_SKIP() << "another sanitizer";
  const fibres::WithoutBarriers without_barriers;
  fibres::test::in_all_orders([&] {
    EXPECT_THROW(expect_cpu_marks<OnFibres>("topk:0.01", 9000), fibres::KernelError);
    const std::vector<float> values = normal(9000, 1);
    MarksOfTheCpu known = marks_of_the_cpu(parse_codec("topk:0.01"), values, 7);
    const Marks marks = {values.size(), known.mask.data(), known.before.data()};
    std::vector<float> taken(known.counts.marked);
    EXPECT_THROW(take_marked_cuda(marks, values.data(), nullptr, taken.data(), nullptr),
                 fibres::KernelError);
    std::vector<float> out(values.size());
    EXPECT_THROW(put_marked_cuda(marks, taken.data(), out.data(), false, nullptr),
                 fibres::KernelError);
  });
}

TEST(CodecKernel, RefusesAFoldOfNothingOrTooMany) {
  const ValueSpec spec = parse_codec("int8").value;
  for (const int num : {0, kMostFolded + 1}) {
    Fold fold;
    fold.num = num;
    try {
      fold_values_cuda(spec, fold, {.count = 8}, {}, nullptr);
      ADD_FAILURE() << num << " contributions were taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Values, CodecKernels, testing::ValuesIn(value_codecs()),
                         [](const auto& codec) {
                           std::string name = codec.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace q7x2::test
