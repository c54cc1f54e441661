// A collective on tensors of a device: it begins with the slices that have arrived, and lets those
// that are complete pass on, before the last one has come.
#include "executor/residence/staged.h"

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "device/output_gate.h"
#include "ranks.h"
#include "transport/task/input_latch.h"

namespace q7x2::test {
namespace {

constexpr size_t kElements = size_t{4} << 20;  // 16 MiB

/// A stream that only remembers where it stops.
struct Waits {
  std::vector<std::pair<const uint32_t*, uint32_t>> waits;
  bool passes(size_t k) const {
    return static_cast<int32_t>(std::atomic_ref(*const_cast<uint32_t*>(waits[k].first)).load() -
                                waits[k].second) >= 0;
  }
};

constexpr StreamCalls kCalls{
    .size = sizeof(StreamCalls),
    .wait_value =
        [](void* stream, const uint32_t* flag, uint32_t value) {
          static_cast<Waits*>(stream)->waits.emplace_back(flag, value);
          return 0;
        },
    .call_host = [](void*, void (*)(void*), void*) { return 0; },
    .is_capturing = [](void*, int*) { return 0; },
};

struct Device {
  Device() : strips(std::vector<size_t>{kElements * sizeof(float)}) {
    alignas(Gate::kFlagBytes) static std::array<std::byte, Gate::kFlagBytes> memory;
    Gate::add_flags(memory.data(), 1);
    gate = std::make_shared<OutputGate>(strips);
    for (size_t k = 0; k < strips.count(); ++k) gate->stop(kCalls, &stream, k);
  }
  const Strips strips;
  Waits stream;
  std::shared_ptr<OutputGate> gate;
};

std::shared_ptr<CollectiveTask> begin(Comm& comm, const Buffer<float>& data, const Device& device,
                                      const std::shared_ptr<InputLatch>& latch,
                                      const std::string& codec) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.input = call.output = {region(*data)};
  call.dtype = DType::kFloat32;
  if (!codec.empty()) {
    call.coding.codec = Codec::make(codec);
    call.coding.edges = EdgeWish::kAll;
  }
  const auto task = comm.make(std::move(call), data);
  task->set_residence(std::make_unique<q7x2::Staged>(latch, device.gate));
  comm.group().runtime().submit(task, /*caller_waits=*/false);
  return task;
}

void wait_for_strip(Comm& comm, const CollectiveTask& task, const Device& device, size_t strip) {
  const TimePoint patience = Clock::now() + kPatience;
  while (!device.stream.passes(strip)) {
    ASSERT_LT(Clock::now(), patience) << "strip " << strip << " did not pass";
    comm.group().runtime().wait(task, Clock::now() + std::chrono::milliseconds(1));
  }
}

TEST(Staged, SlicesBeginAsTheirInputArrives) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    Device device;
    const Buffer<float> data = buffer<float>(kElements, static_cast<float>(rank.rank + 1));
    const auto latch = std::make_shared<InputLatch>(Runtime::existing()->completions());
    const auto task = begin(comm, data, device, latch, "");
    const size_t half = device.strips.count() / 2;
    CompletionQueue::post(latch->arrival(device.strips.begin(half)));
    wait_for_strip(comm, *task, device, 0);
    EXPECT_EQ((*data)[0], 3.0F);
    EXPECT_FALSE(task->done());
    EXPECT_FALSE(device.stream.passes(half));
    EXPECT_EQ(data->back(), static_cast<float>(rank.rank + 1));
    rank.barrier();  // both ranks have seen it
    CompletionQueue::post(latch->arrival());
    comm.succeed(*task);
    EXPECT_EQ(data->back(), 3.0F);
    device.gate->open();
    EXPECT_TRUE(device.stream.passes(device.strips.count() - 1));
  });
}

// Nothing is sent of what a codec selects before all of the input is there.
TEST(Staged, SelectionsWaitForTheWholeInput) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    Device device;
    const Buffer<float> data = buffer<float>(kElements);
    const auto latch = std::make_shared<InputLatch>(Runtime::existing()->completions());
    const auto task = begin(comm, data, device, latch, "topk:0.001");
    CompletionQueue::post(latch->arrival(device.strips.begin(device.strips.count() - 1)));
    EXPECT_FALSE(comm.group().runtime().wait(*task, Clock::now() + std::chrono::milliseconds(50)));
    rank.barrier();
    EXPECT_FALSE(device.stream.passes(0));
    (*data)[kElements - 1] = 1;  // arrives last, and is all there is
    CompletionQueue::post(latch->arrival());
    comm.succeed(*task);
    EXPECT_EQ(data->back(), 2.0F);
  });
}

}  // namespace
}  // namespace q7x2::test
