// The value stage on a GPU against the one on the CPU: equal bytes, equal numbers. Skipped where
// there is no GPU; tests/device/fibres runs the same kernels on the CPU.
#include "kernels/cuda/codec_cuda.h"

#include <gtest/gtest.h>

#include "device/runtime.h"

#if Q7X2_HAVE_CUDA

#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "device_codec_cases.h"
#include "device_mark_cases.h"

namespace q7x2::test {
namespace {

/// A copy of a vector on the GPU.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : bytes_(values.size() * sizeof(T)) {
    EXPECT_EQ(cudaMalloc(&pointer_, bytes_ + 1), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(pointer_, values.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(pointer_); }

  T* get() const { return static_cast<T*>(pointer_); }
  std::vector<T> copy() const {
    std::vector<T> values(bytes_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(values.data(), pointer_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  size_t bytes_;
  void* pointer_ = nullptr;
};

TEST(CodecCuda, AgreesWithTheCpuBitByBit) {
  const CudaInfo info = cuda_info();
  if (info.devices.empty()) GTEST_SKIP() << info.problem;
  for (const std::string& name : value_codecs()) {
    for (const size_t count : {1, 31, 513, 4097, 100000}) expect_cpu_bits<OnDevice>(name, count);
    for (const size_t offset : {1, 2, 4}) expect_cpu_bits_at_offset<OnDevice>(name, 5000, offset);
    for (const bool feedback : {false, true}) expect_cpu_fold<OnDevice>(name, 100000, feedback);
    expect_cpu_sum<OnDevice>(name, 100000);
  }
  for (const size_t count : {1, 37, 2049, 100000}) expect_cpu_integers<OnDevice>(count, 0);
  for (const size_t offset : {1, 2}) expect_cpu_integers<OnDevice>(5000, offset);
}

TEST(CodecCuda, SelectsAsTheCpuDoes) {
  const CudaInfo info = cuda_info();
  if (info.devices.empty()) GTEST_SKIP() << info.problem;
  for (const std::string& name : kMarkedCodecs) {
    for (const size_t count : {1, 37, 9000, 1000000}) expect_cpu_marks<OnDevice>(name, count);
  }
}

}  // namespace
}  // namespace q7x2::test

#else

TEST(CodecCuda, AgreesWithTheCpuBitByBit) {
  GTEST_SKIP() << q7x2::cuda_info().problem;
}
TEST(CodecCuda, SelectsAsTheCpuDoes) {
  GTEST_SKIP() << q7x2::cuda_info().problem;
}

#endif
