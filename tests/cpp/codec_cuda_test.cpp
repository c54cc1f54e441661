// The value stage on a GPU against the one on the CPU: equal bytes, equal numbers. Skipped where
// there is no GPU; what both share is tested on the CPU.
#include "kernels/codec_cuda.h"

#include <gtest/gtest.h>

#include "kernels/cuda_device.h"

#if Q7X2_HAVE_CUDA

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace q7x2 {
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

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(CodecCuda, AgreesWithTheCpuBitByBit) {
  const CudaInfo info = cuda_info();
  if (info.devices.empty()) GTEST_SKIP() << info.problem;
  const ValueKernels& cpu = dispatched_value_kernels();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::string name : {"fp32",
                                 "fp16",
                                 "bf16",
                                 "fp8_e4m3",
                                 "fp8_e5m2",
                                 "int8",
                                 "int8:sr",
                                 "int8:minmax",
                                 "int6",
                                 "int4:g=32",
                                 "int4:minmax:sr",
                                 "int3",
                                 "int2",
                                 "qsgd",
                                 "ternary",
                                 "onebit",
                                 "sign",
                                 "hadamard+int4",
                                 "hadamard+int4:sr",
                                 "hadamard+int2:g=1024",
                                 "hadamard+onebit",
                                 "hadamard+fp8_e4m3"}) {
    const ValueSpec spec = parse_codec(name).value;
    for (const size_t count : {1, 31, 513, 4097, 100000}) {
      std::vector<float> values(count);
      std::vector<float> error(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = std::ldexp(normal(random), static_cast<int>(i / 512 * 37 % 200) - 100);
        error[i] = 0.1F * normal(random);
      }
      values[count / 2] = count > 1000 ? std::numeric_limits<float>::infinity() : 0;
      for (const bool feedback : {false, true}) {
        ValueBlock block = {.count = count,
                            .first = 12345,
                            .error_scale = 0.9F,
                            .shared_key = 7,
                            .rounding_key = 8};
        std::vector<std::byte> body(value_bytes(spec, count));
        const OnDevice<float> values_there(values);
        const OnDevice<float> error_there(error);
        const OnDevice<std::byte> body_there(body);
        ValueBlock there = block;
        there.values = values_there.get();
        if (feedback) there.add = there.error = error_there.get();
        encode_values_cuda(spec, there, body_there.get(), nullptr);

        std::vector<float> kept = error;
        block.values = values.data();
        if (feedback) block.add = block.error = kept.data();
        cpu.encode(spec, block, body.data());
        EXPECT_EQ(body_there.copy(), body) << name << ", " << count;
        EXPECT_TRUE(same_bits(error_there.copy(), kept)) << name << ", " << count;

        for (const bool add : {false, true}) {
          std::vector<float> out = error;
          const OnDevice<float> out_there(out);
          decode_values_cuda(spec, body_there.get(), out_there.get(), count, 12345, 7, add,
                             nullptr);
          cpu.decode(spec, body.data(), out.data(), count, 12345, 7, add);
          const std::vector<float> result = out_there.copy();
          for (size_t i = 0; i < count; ++i) {
            // Which NaN an addition returns is up to the processor.
            const bool same = std::isnan(out[i]) ? std::isnan(result[i])
                                                 : std::memcmp(&out[i], &result[i], 4) == 0;
            ASSERT_TRUE(same) << name << ", element " << i << " of " << count;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace q7x2

#else

TEST(CodecCuda, AgreesWithTheCpuBitByBit) {
  GTEST_SKIP() << q7x2::cuda_info().problem;
}

#endif
