#include "device/gate.h"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/output_gate.h"

namespace q7x2 {
namespace {

// A stream that remembers what it has to wait for.
struct Waits {
  struct Wait {
    const uint32_t* flag;
    uint32_t value;
    bool is_over() const { return static_cast<int32_t>(*flag - value) >= 0; }
  };
  std::vector<Wait> waits;
};

constexpr StreamCalls kCalls{
    .size = sizeof(StreamCalls),
    .wait_value =
        [](void* stream, const uint32_t* flag, uint32_t value) {
          static_cast<Waits*>(stream)->waits.push_back({flag, value});
          return 0;
        },
    .call_host = [](void*, void (*)(void*), void*) { return 0; },
    .is_capturing = [](void*, int*) { return 0; },
};

void add_one_flag() {
  alignas(Gate::kFlagBytes) static std::array<std::byte, Gate::kFlagBytes> memory;
  if (!Gate::has_flag()) Gate::add_flags(memory.data(), 1);
}

TEST(Gate, StreamWaitsUntilItIsOpen) {
  add_one_flag();
  Waits stream;
  Gate gate;
  EXPECT_FALSE(Gate::has_flag());
  EXPECT_THROW(Gate(), Error);
  gate.stop(kCalls, &stream, 0);
  EXPECT_FALSE(stream.waits[0].is_over());
  gate.open();
  EXPECT_TRUE(stream.waits[0].is_over());
  gate.open();
  EXPECT_TRUE(Gate::has_flag());
}

TEST(Gate, FlagServesTheNextGateBeforeTheStreamHasPassed) {
  add_one_flag();
  Waits stream;
  for (size_t i = 0; i < 3; ++i) {
    Gate gate;
    gate.stop(kCalls, &stream, 0);
    EXPECT_FALSE(stream.waits[i].is_over());
    for (size_t earlier = 0; earlier < i; ++earlier) {
      EXPECT_TRUE(stream.waits[earlier].is_over());
    }
  }  // its destructor opens it
  EXPECT_TRUE(stream.waits[2].is_over());
}

TEST(Gate, StepsOpenOneAfterTheOther) {
  add_one_flag();
  Waits stream;
  Gate gate(3);
  for (uint32_t step = 0; step < 3; ++step) gate.stop(kCalls, &stream, step);
  for (size_t open = 0; open < 3; ++open) {
    gate.open(static_cast<uint32_t>(open));
    for (size_t step = 0; step < 3; ++step) EXPECT_EQ(stream.waits[step].is_over(), step < open);
  }
  gate.open(1);  // does not close what is open
  EXPECT_TRUE(stream.waits[1].is_over());
  gate.open();
  EXPECT_TRUE(stream.waits[2].is_over());
  // Another gate has the flag: the first one does not touch it any more.
  Gate next(2);
  next.stop(kCalls, &stream, 0);
  gate.open(3);
  EXPECT_FALSE(stream.waits[3].is_over());
}

TEST(OutputGate, StripIsOpenWhenAllOfItIsFinal) {
  add_one_flag();
  Waits stream;
  const std::vector<size_t> regions{5 << 20, 2 << 20};
  OutputGate gate{Strips(regions)};
  ASSERT_EQ(gate.strips().count(), 7U);
  for (size_t k = 0; k < gate.strips().count(); ++k) gate.stop(kCalls, &stream, k);
  const auto open = [&] {
    return std::ranges::count_if(stream.waits, [](const auto& wait) { return wait.is_over(); });
  };
  gate.finish(gate.strips().begin(1) - 1);
  EXPECT_EQ(open(), 0);
  gate.finish(gate.strips().begin(3));
  EXPECT_EQ(open(), 3);
  gate.finish((5 << 20) - 1);
  EXPECT_EQ(open(), 6);
  gate.finish(5 << 20);
  EXPECT_EQ(open(), 7);
}

TEST(Gate, StreamThatRefusesIsAnError) {
  add_one_flag();
  StreamCalls calls = kCalls;
  calls.wait_value = [](void*, const uint32_t*, uint32_t) { return 7; };
  Gate gate;
  EXPECT_THROW(gate.stop(calls, nullptr, 0), Error);
}

TEST(Accelerators, AreRegisteredOnceAndComplete) {
  EXPECT_EQ(stream_calls("gate_test"), nullptr);
  StreamCalls incomplete = kCalls;
  incomplete.call_host = nullptr;
  EXPECT_THROW(register_accelerator("gate_test", incomplete), Error);
  incomplete = kCalls;
  incomplete.size = 8;
  EXPECT_THROW(register_accelerator("gate_test", incomplete), Error);
  EXPECT_EQ(stream_calls("gate_test"), nullptr);
  register_accelerator("gate_test", kCalls);
  EXPECT_EQ(stream_calls("gate_test"), &kCalls);
  register_accelerator("gate_test", kCalls);
  static const StreamCalls others = kCalls;
  EXPECT_THROW(register_accelerator("gate_test", others), Error);
  EXPECT_THROW(register_accelerator("cuda", kCalls), Error);
}

}  // namespace
}  // namespace q7x2
