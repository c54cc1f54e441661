// What a BlockCoder does to the errors of elements that travel as they are.
#include "executor/call/block_coder.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/convert.h"

namespace q7x2 {
namespace {

constexpr size_t kCount = 1'000;

struct Tensor {
  explicit Tensor(DType type) : dtype(type), bytes(kCount * element_size(type)) {}

  std::vector<float> values() const {
    std::vector<float> all(kCount);
    widen(all.data(), bytes.data(), kCount, dtype);
    return all;
  }

  DType dtype;
  std::vector<std::byte> bytes;
};

TEST(BlockCoder, ErrorsAreGivenAsFarAsElementsHoldThem) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    Coding coding;
    coding.codec = Codec::make("int8");
    BlockCoder coder(coding, dtype, kCount, kCount * element_size(dtype), true);
    Tensor tensor(dtype);
    std::vector<float> given(kCount);
    std::vector<float> errors(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      given[i] = static_cast<float>(i) / 7;
      errors[i] = static_cast<float>(i % 13) / 999;
    }
    given[3] = INFINITY;
    narrow(tensor.bytes.data(), given.data(), kCount, dtype);
    given = tensor.values();
    const std::vector<float> owed = errors;

    const Tensor before = tensor;
    Tensor out(dtype);
    coder.add_residual({0, errors.data()}, kCount, tensor.bytes.data(), out.bytes.data());
    EXPECT_EQ(tensor.bytes, before.bytes);
    const std::vector<float> sent = out.values();
    EXPECT_EQ(sent[3], INFINITY);
    EXPECT_EQ(errors[3], owed[3]);
    for (size_t i = 4; i < kCount; ++i) {
      EXPECT_EQ(sent[i] + errors[i], given[i] + owed[i]) << i;
      const float most = element_size(dtype) < sizeof(float) ? std::fabs(sent[i]) / 256 : 0;
      EXPECT_LE(std::fabs(errors[i]), most) << i;
    }

    const std::vector<float> left = errors;
    Tensor again(dtype);
    coder.add_residual({0, errors.data()}, kCount, out.bytes.data(), again.bytes.data());
    EXPECT_EQ(again.values(), sent);
    EXPECT_EQ(errors, left);
  }
}

}  // namespace
}  // namespace q7x2
