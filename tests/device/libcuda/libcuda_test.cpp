// The stand-in for CUDA's driver by itself, and what UCX does with device memory on it.
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include <cuda.h>
#include <gtest/gtest.h>

#include "copies.h"
#include "ucx_pair.h"

namespace q7x2::test {
namespace {

class FakeCuda : public testing::Test {
 protected:
  void SetUp() override {
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&memory_, kBytes), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cuMemFree(memory_), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }

  static constexpr size_t kBytes = 10'000;
  CUdeviceptr memory_ = 0;
};

TEST_F(FakeCuda, HostCannotTouchDeviceMemory) {
  volatile char* const pointer = reinterpret_cast<char*>(memory_);
  EXPECT_DEATH(pointer[0] = 1, "");
  EXPECT_DEATH([[maybe_unused]] const char value = pointer[kBytes - 1], "");
}

TEST_F(FakeCuda, CopiesMoveBytesAndAreCounted) {
  const std::vector<char> values(100, 'x');
  std::vector<char> back(100);
  FakeCudaCopies before{};
  FakeCudaCopies after{};
  fake_cuda_copies(&before);
  EXPECT_EQ(cuMemcpyHtoD(memory_ + 7, values.data(), 100), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoDAsync(memory_ + 200, memory_ + 7, 100, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(back.data(), memory_ + 200, 100), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(memory_ + kBytes - 50, values.data(), 100), CUDA_ERROR_INVALID_VALUE);
  fake_cuda_copies(&after);
  EXPECT_EQ(back, values);
  EXPECT_EQ(after.to_device - before.to_device, 1);
  EXPECT_EQ(after.bytes_to_device - before.bytes_to_device, 100);
  EXPECT_EQ(after.on_device - before.on_device, 1);
  EXPECT_EQ(after.to_host - before.to_host, 1);
  EXPECT_EQ(after.peer, before.peer);
}

TEST_F(FakeCuda, EventIsCompleteWhenItsStreamHasComeToIt) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  std::vector<char> back(kBytes);
  std::atomic<bool> may_go_on = false;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  const auto wait = [](CUstream, CUresult, void* flag) {
    static_cast<std::atomic<bool>*>(flag)->wait(false);
  };
  EXPECT_EQ(cuStreamAddCallback(stream, wait, &may_go_on, 0), CUDA_SUCCESS);
  const std::vector<char> values(kBytes, 'y');
  EXPECT_EQ(cuMemcpyHtoD(memory_, values.data(), kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(back.data()), memory_, kBytes, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(back[0], '\0');
  may_go_on = true;
  may_go_on.notify_all();
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(back, values);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(FakeCuda, PointersAreThoseOfTheDeviceOrOfTheHost) {
  int host = 0;
  const auto host_address = reinterpret_cast<CUdeviceptr>(&host);
  unsigned kind = 0;
  EXPECT_EQ(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory_ + kBytes - 1),
            CUDA_SUCCESS);
  EXPECT_EQ(kind, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host_address),
            CUDA_ERROR_INVALID_VALUE);
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* data = &kind;
  EXPECT_EQ(cuPointerGetAttributes(1, &attribute, &data, host_address), CUDA_SUCCESS);
  EXPECT_EQ(kind, 0U);
  CUipcMemHandle handle{};
  EXPECT_EQ(cuIpcGetMemHandle(&handle, host_address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuIpcGetMemHandle(&handle, memory_), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&again, handle, 0), CUDA_ERROR_INVALID_CONTEXT);
}

constexpr size_t kMiB = size_t{1} << 20;

// Each way that device memory can take, with UCX's settings for it.
const std::map<std::string, std::map<std::string, std::string>>& ways() {
  static const std::map<std::string, std::map<std::string, std::string>> all = {
      {"tcp", {{"TLS", "cuda_copy,tcp"}}},
      {"tcp_large",
       {{"TLS", "cuda_copy,tcp"}, {"TCP_TX_SEG_SIZE", "256K"}, {"TCP_RX_SEG_SIZE", "256K"}}},
      {"shared_memory", {{"TLS", "cuda_copy,posix"}, {"MM_ERROR_HANDLING", "y"}}},
      {"cuda_ipc", {{"TLS", "cuda_copy,cuda_ipc,tcp"}}},
      {"cuda_ipc_sysv", {{"TLS", "cuda_copy,cuda_ipc,sysv"}, {"MM_ERROR_HANDLING", "y"}}}};
  return all;
}

Outcome move(const std::string& way, size_t bytes) {
  return move_device_memory({.settings = ways().at(way), .bytes = bytes});
}

void expect_staged(const Outcome& outcome, size_t bytes) {
  EXPECT_EQ(outcome.sender.bytes_to_host, bytes);
  EXPECT_EQ(outcome.receiver.bytes_to_device, bytes);
  EXPECT_EQ(outcome.sender.peer + outcome.receiver.peer, 0);
}

class UcxMovesDeviceMemory : public testing::TestWithParam<std::string> {};

TEST_P(UcxMovesDeviceMemory, OfAnySize) {
  for (const size_t bytes : {size_t{1}, size_t{4097}, kMiB + 3}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    EXPECT_EQ(move(GetParam(), bytes).problem, "");
  }
}

INSTANTIATE_TEST_SUITE_P(, UcxMovesDeviceMemory,
                         testing::Values("tcp", "tcp_large", "shared_memory", "cuda_ipc",
                                         "cuda_ipc_sysv"),
                         [](const auto& way) { return way.param; });

// This is why q7x2 gives UCX no device memory over TCP, and copies larger chunks itself.
TEST(UcxWithDeviceMemory, TcpCopiesFragmentsOf8KiB) {
  const Outcome outcome = move("tcp", 4 * kMiB);
  ASSERT_EQ(outcome.problem, "");
  expect_staged(outcome, 4 * kMiB);
  EXPECT_GE(outcome.sender.to_host, 4 * kMiB / 8192);
  EXPECT_GE(outcome.receiver.to_device, 4 * kMiB / 8192);
}

TEST(UcxWithDeviceMemory, LargerSegmentsAreFewerCopies) {
  const Outcome outcome = move("tcp_large", 4 * kMiB);
  ASSERT_EQ(outcome.problem, "");
  expect_staged(outcome, 4 * kMiB);
  EXPECT_LE(outcome.sender.to_host, 20);
  EXPECT_LE(outcome.receiver.to_device, 20);
}

TEST(UcxWithDeviceMemory, CudaIpcIsOneCopyAndTouchesNoHostMemory) {
  const Outcome outcome = move("cuda_ipc_sysv", 4 * kMiB);
  ASSERT_EQ(outcome.problem, "");
  EXPECT_EQ(outcome.sender.peer + outcome.receiver.peer, 1);
  EXPECT_EQ(outcome.sender.bytes_peer + outcome.receiver.bytes_peer, 4 * kMiB);
  for (const FakeCudaCopies& copies : {outcome.sender, outcome.receiver})
    EXPECT_EQ(copies.to_host + copies.to_device + copies.on_device, 0);
}

}  // namespace
}  // namespace q7x2::test
