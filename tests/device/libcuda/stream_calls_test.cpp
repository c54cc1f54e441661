// What q7x2 asks of CUDA's streams through the driver's entry points: device/accelerators.cpp.
#include <atomic>
#include <cstdint>
#include <thread>

#include <cuda.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/accelerators.h"

namespace q7x2 {
namespace {

class CudaStreamCalls : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_NE(calls(), nullptr);
  }
  void TearDown() override { EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS); }

  static const StreamCalls* calls() { return stream_calls("cuda"); }
  void call_host(std::atomic<bool>& flag) {
    const auto set = [](void* argument) { *static_cast<std::atomic<bool>*>(argument) = true; };
    check_stream_call(calls()->call_host(stream_, set, &flag), "call_host");
  }

  CUstream stream_ = nullptr;
};

TEST_F(CudaStreamCalls, StreamWaitsForAWordOfTheHost) {
  // Its values wrap around, so a wait is for a difference.
  std::atomic<uint32_t> word = 0xffff'fffe;
  static_assert(sizeof(word) == sizeof(uint32_t));
  std::atomic<bool> before = false;
  std::atomic<bool> after = false;
  call_host(before);
  check_stream_call(calls()->wait_value(stream_, reinterpret_cast<uint32_t*>(&word), 1),
                    "wait_value");
  call_host(after);
  while (!before) std::this_thread::yield();
  EXPECT_FALSE(after);
  word = 0xffff'ffff;
  EXPECT_FALSE(after);
  word = 1;
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_TRUE(after);
}

TEST_F(CudaStreamCalls, StreamDoesNotRecordForAGraph) {
  int is_capturing = 1;
  check_stream_call(calls()->is_capturing(stream_, &is_capturing), "is_capturing");
  EXPECT_EQ(is_capturing, 0);
}

TEST_F(CudaStreamCalls, ErrorOfTheDriverIsThrown) {
  const auto nothing = [](void*) {};
  EXPECT_THROW(check_stream_call(calls()->call_host(nullptr, nothing, nullptr), "call_host"),
               Error);
}

}  // namespace
}  // namespace q7x2
