// What a stream of CUDA completes, on its way to a task: in the stream's host function nothing of
// CUDA may be called, and UCX may call CUDA, so the task hears of it in another thread.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <cuda.h>
#include <gtest/gtest.h>

#include "device/accelerators.h"
#include "ranks.h"
#include "transport/task/input_latch.h"
#include "transport/task/task.h"

namespace q7x2::test {
namespace {

/// What UCX asks of the memory that it is to send.
CUresult ask_for_memory_type() {
  static int host;
  unsigned kind = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* data = &kind;
  return cuPointerGetAttributes(1, &attribute, &data, reinterpret_cast<CUdeviceptr>(&host));
}

/// Waits for its input, and then asks.
class AskingTask final : public Task {
 public:
  AskingTask(std::shared_ptr<Group> group, std::shared_ptr<InputLatch> latch)
      : Task(std::move(group), std::chrono::milliseconds(0)), latch_(std::move(latch)) {
    set_inputs(latch_);
  }
  std::string name() const override { return "asking"; }
  void start(Locked& locked) override {
    if (!awaits_inputs(locked)) inputs_arrived(locked);
  }
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}
  void inputs_arrived(Locked& locked) override {
    seen.push_back(latch_->arrived());
    answer = ask_for_memory_type();
    if (latch_->is_open()) finish(locked);
  }

  std::vector<size_t> seen;
  CUresult answer = CUDA_ERROR_UNKNOWN;

 private:
  const std::shared_ptr<InputLatch> latch_;
};

TEST(Completion, ReachesTheTaskWhereCudaMayBeCalled) {
  run_ranks(1, [](Rank& rank) {
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const StreamCalls& calls = *stream_calls("cuda");
    std::atomic<CUresult> in_host_function = CUDA_SUCCESS;
    const auto ask = [](void* answer) {
      *static_cast<std::atomic<CUresult>*>(answer) = ask_for_memory_type();
    };
    check_stream_call(calls.call_host(stream, ask, &in_host_function), "call_host");

    const auto latch = std::make_shared<InputLatch>(rank.runtime().completions());
    const auto task = std::make_shared<AskingTask>(rank.group(), latch);
    rank.runtime().submit(task, /*caller_waits=*/false);
    Completion::post_after(calls, stream, latch->arrival(64));
    Completion::post_after(calls, stream, latch->arrival());
    // The driver sleeps or not, and nobody else waits.
    while (!task->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(task->error());
    EXPECT_EQ(task->answer, CUDA_SUCCESS);
    EXPECT_EQ(task->seen, (std::vector<size_t>{64, SIZE_MAX}));
    EXPECT_EQ(in_host_function, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  });
}

}  // namespace
}  // namespace q7x2::test
