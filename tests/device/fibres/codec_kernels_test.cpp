// CUDA's codec kernels, run as fibres: the bits of the CPU's codec, in each order of threads, and
// no races.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device_codec_cases.h"
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
      slow ? std::vector<size_t>{31, 513} : std::vector<size_t>{1, 31, 513, 2049};
  fibres::test::in_all_orders([&] {
    for (const size_t count : counts) expect_cpu_bits<OnFibres>(GetParam(), count);
  });
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
