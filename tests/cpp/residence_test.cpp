// Each residence on its own: what has arrived, where blocks and messages lie, who runs jobs, how
// elements enter and leave, and that a call degrades once.
#include "executor/residence/residence.h"

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "executor/residence/direct.h"
#include "executor/residence/staged.h"
#include "executor/residence/whole_staging.h"
#include "plan/ir/schedule.h"
#include "thread_device.h"

namespace q7x2::test {
namespace {

using Next = Residence::Next;
using Way = Residence::Way;

constexpr size_t kCount = 5000;

/// One rank's all-reduce with a Plan of ours. Nothing runs it.
class Call {
 public:
  /// `sends`: what the Plan sends as it is; none: it encodes the input, and sends that.
  explicit Call(const std::string& codec, bool sends_elements = false)
      : numbers_(DType::kFloat32, normal(kCount, 1), normal(kCount, 2, 0.1F)),
        call(call_on(numbers_, "", codec)) {
    PlanBuilder plan(Schedule({Collective::kAllReduce, 2}, "none", {1}).header(0));
    if (sends_elements) {
      plan.send(1, Block::input(0));
      plan.recv(1, Block::scratch(0), {}, Block::input(0));
    } else {
      const auto coded = plan.copy(Block::input(0), Block::coded(0), {}, {}, true);
      plan.send(1, Block::coded(0), {{coded}}, Block::input(0));
    }
    choice_.plan = std::make_shared<const Plan>(plan.build());
    choice_.slice_bytes = choice_.part_bytes = 32768;
    choice_.window = 3;
    slicing_ = Slicing(call, choice_);
    coder_ = std::make_unique<BlockCoder>(call.coding, call.dtype, slicing_.longest_part(),
                                          slicing_.bytes(), /*decodes_sums=*/true);
  }

  Residence::Run run() { return {call, choice_, slicing_, coder_.get()}; }
  const std::byte* elements() const { return numbers_.values.data(); }
  const Numbers& numbers() const { return numbers_; }

 private:
  Numbers numbers_;
  Choice choice_;
  Slicing slicing_;
  std::unique_ptr<BlockCoder> coder_;

 public:
  CollectiveCall call;
};

/// Who runs a job of each kind: the device or the host.
std::string workers(const Residence& residence) {
  std::string text;
  for (const auto kind : {OpJob::Kind::kCopy, OpJob::Kind::kReduce, OpJob::Kind::kEncode,
                          OpJob::Kind::kDecode, OpJob::Kind::kFold, OpJob::Kind::kFoldToMessage}) {
    text += residence.worker(kind) == nullptr ? 'h' : 'd';
  }
  return text;
}

TEST(Residence, HostHasItAllFromTheStart) {
  Residence& host = Host::of_process();
  EXPECT_TRUE(host.has_arrived());
  EXPECT_FALSE(host.enters());
  EXPECT_FALSE(host.leaves());
  EXPECT_TRUE(host.uses_shared_memory());
  EXPECT_EQ(host.message_kind(), MemoryKind::kHost);
  EXPECT_EQ(workers(host), "hhhhhh");
  Call call("int4", /*sends_elements=*/true);
  ScratchPool pool;
  const Residence::Memory memory = host.memory(call.run(), 0, pool);
  EXPECT_EQ(call.run().block_bytes(), 32768U);
  EXPECT_GE(memory.pooled.bytes, call.run().block_bytes() + call.run().message_bytes());
  EXPECT_EQ(memory.blocks, memory.pooled.data);
  EXPECT_EQ(memory.messages, memory.blocks + call.run().block_bytes());
  pool.release(memory.pooled);
}

TEST(Residence, StagedFollowsTheStrips) {
  run_ranks(1, [](Rank& rank) {
    Runtime& runtime = rank.runtime();
    const auto latch = std::make_shared<InputLatch>(runtime.completions());
    const Strips strips(std::vector<size_t>{4 << 20});
    alignas(Gate::kFlagBytes) static std::array<std::byte, Gate::kFlagBytes> flag;
    Gate::add_flags(flag.data(), 1);
    const auto gate = std::make_shared<OutputGate>(strips);
    Staged staged(latch, gate);
    EXPECT_EQ(staged.arrived(), 0U);
    EXPECT_FALSE(staged.enters());
    EXPECT_EQ(workers(staged), "hhhhhh");
    const auto deliver = [&](std::unique_ptr<Completion> arrival) {
      CompletionQueue::post(std::move(arrival));
      const TimePoint patience = Clock::now() + kPatience;
      const size_t before = staged.arrived();
      while (staged.arrived() == before && Clock::now() < patience) std::this_thread::yield();
    };
    deliver(latch->arrival(strips.begin(1)));
    EXPECT_EQ(staged.arrived(), strips.begin(1));
    EXPECT_FALSE(staged.has_arrived());
    deliver(latch->arrival());
    EXPECT_TRUE(staged.has_arrived());
    Staged without(nullptr, nullptr);
    EXPECT_TRUE(without.has_arrived());
    without.finish(1);  // nobody listens
  });
}

TEST(Residence, DirectHasItsBlocksOnTheDevice) {
  const ResidentDevice device = thread_device();
  Direct direct(nullptr, device);
  EXPECT_EQ(direct.message_kind(), MemoryKind::kCuda);
  EXPECT_EQ(workers(direct), "ddhhhh");
  EXPECT_TRUE(direct.enters());
  EXPECT_FALSE(direct.leaves());
  Call call("int4", /*sends_elements=*/true);
  EXPECT_EQ(direct.enter(call.run()), Next::kStream);
  EXPECT_EQ(&direct.stream(Way::kIn), device.to_device.get());
  ScratchPool pool;
  const std::byte* const first = direct.memory(call.run(), 0, pool).blocks;
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(direct.memory(call.run(), 2, pool).blocks, first + 2 * call.run().block_bytes());
  EXPECT_EQ(device.traffic->direct.calls, 1U);
}

TEST(Residence, DeviceCodedHasMessagesInPinnedMemory) {
  DeviceCoded residence(nullptr, thread_device());
  EXPECT_EQ(workers(residence), "hhdddd");
  EXPECT_FALSE(residence.uses_shared_memory());
  EXPECT_FALSE(residence.met_nonfinite());
  Call call("int4");
  residence.prepare(call.run());
  EXPECT_FALSE(residence.enters());
  EXPECT_FALSE(residence.leaves());
  ScratchPool pool;
  const std::byte* const first = residence.memory(call.run(), 0, pool).messages;
  EXPECT_EQ(residence.memory(call.run(), 1, pool).messages, first + call.run().message_bytes());
  EXPECT_EQ(call.call.input[0].data, call.elements());
}

// The Plan is known only when the call begins.
TEST(Residence, DeviceCodedEntersWithoutAStep) {
  DeviceCoded residence(nullptr, thread_device());
  EXPECT_TRUE(residence.enters());
  Call call("int4");
  EXPECT_EQ(residence.enter(call.run()), Next::kNothing);
}

void expect_degrading(Residence& residence, Call& call, const ResidentDevice& device) {
  const std::byte* const there = call.call.input[0].data;
  EXPECT_EQ(residence.enter(call.run()), Next::kDegrade);
  EXPECT_EQ(call.call.input[0].data, there);
  WholeStaging instead(nullptr, device);
  EXPECT_TRUE(instead.enters());
  EXPECT_TRUE(instead.leaves());
  EXPECT_FALSE(instead.selects());
  EXPECT_EQ(workers(instead), "hhhhhh");
  EXPECT_EQ(instead.enter(call.run()), Next::kStream);
  await(instead.stream(Way::kIn));
  const Region& host = call.call.input[0];
  EXPECT_NE(host.data, there);
  EXPECT_EQ(std::memcmp(host.data, there, host.bytes), 0);
  EXPECT_EQ(host.data, call.call.output[0].data);  // the call stays in place
  std::memset(host.data, 7, host.bytes);
  EXPECT_EQ(instead.leave(call.run()), Next::kStream);
  await(instead.stream(Way::kOut));
  EXPECT_EQ(std::memcmp(host.data, there, host.bytes), 0);
  EXPECT_EQ(device.traffic->staged.calls, 1U);
}

TEST(Residence, DeviceCodedDegradesWithPlansThatSendElements) {
  const ResidentDevice device = thread_device();
  DeviceCoded residence(nullptr, device);
  Call call("int4", /*sends_elements=*/true);
  residence.prepare(call.run());
  EXPECT_TRUE(residence.enters());
  expect_degrading(residence, call, device);
}

TEST(Residence, SelectedTakesWhatIsSentToTheHost) {
  const ResidentDevice device = thread_device();
  Selected residence(nullptr, device);
  EXPECT_EQ(workers(residence), "hhhhhh");
  EXPECT_TRUE(residence.selects());
  Call call("topk:0.01");
  const std::byte* const there = call.call.output[0].data;
  for (const Next expected : {Next::kStep, Next::kStep, Next::kNothing}) {
    EXPECT_EQ(residence.enter(call.run()), expected);
    await(residence.stream(Way::kIn));
  }
  EXPECT_EQ(call.call.input[0].data, there);
  EXPECT_NE(call.call.output[0].data, there);
  EXPECT_LT(device.traffic->coded.to_host, kCount * sizeof(float) / 4);
  std::memset(call.call.output[0].data, 0, call.call.output[0].bytes);
  EXPECT_EQ(residence.leave(call.run()), Next::kStream);
  await(residence.stream(Way::kOut));
  EXPECT_EQ(call.numbers().values, std::vector<std::byte>(kCount * sizeof(float)));
}

TEST(Residence, SelectedDegradesWithPlansThatSendElements) {
  const ResidentDevice device = thread_device();
  Selected residence(nullptr, device);
  Call call("topk:0.01", /*sends_elements=*/true);
  expect_degrading(residence, call, device);
}

// Codecs keep no error of an infinity, which the device meets as it marks what is sent.
TEST(Residence, SelectedDegradesAfterTheMarks) {
  const ResidentDevice device = thread_device();
  Selected residence(nullptr, device);
  Call call("topk:0.01");
  reinterpret_cast<float*>(call.call.input[0].data)[77] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(residence.enter(call.run()), Next::kStep);
  await(residence.stream(Way::kIn));
  expect_degrading(residence, call, device);
}

/// It serves no call.
class Refusing final : public Residence {
 public:
  Refusing(std::shared_ptr<InputLatch> inputs, const ResidentDevice& device, int* asked)
      : Residence(std::move(inputs), device), asked_(*asked) {
    enters_ = true;
  }
  Next enter(const Run&) override {
    ++asked_;
    return Next::kDegrade;
  }

 private:
  int& asked_;
};

TEST(Residence, ACallDegradesOnce) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const ResidentDevice device = thread_device();
    const auto numbers =
        std::make_shared<Numbers>(DType::kFloat32, std::vector(kCount, 1.0F), std::vector<float>());
    CollectiveCall call;
    call.collective = Collective::kAllReduce;
    call.input = call.output = {region(numbers->values)};
    call.dtype = DType::kFloat32;
    const auto latch = std::make_shared<InputLatch>(comm.group().runtime().completions());
    const auto task = comm.make(std::move(call), numbers);
    int asked = 0;
    task->set_residence(std::make_unique<Refusing>(latch, device, &asked));
    comm.group().runtime().submit(task, /*caller_waits=*/false);
    CompletionQueue::post(latch->arrival());
    comm.succeed(*task);
    EXPECT_EQ(asked, 1);
    EXPECT_EQ(numbers->values, Numbers(DType::kFloat32, std::vector(kCount, 2.0F), {}).values);
    EXPECT_EQ(device.traffic->staged.calls, 1U);
    EXPECT_EQ(device.traffic->staged.to_device, kCount * sizeof(float));
  });
}

}  // namespace
}  // namespace q7x2::test
