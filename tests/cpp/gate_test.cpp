#include "device/gate.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

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
  gate.stop(kCalls, &stream);
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
    gate.stop(kCalls, &stream);
    EXPECT_FALSE(stream.waits[i].is_over());
    for (size_t earlier = 0; earlier < i; ++earlier) {
      EXPECT_TRUE(stream.waits[earlier].is_over());
    }
  }  // its destructor opens it
  EXPECT_TRUE(stream.waits[2].is_over());
}

TEST(Gate, StreamThatRefusesIsAnError) {
  add_one_flag();
  StreamCalls calls = kCalls;
  calls.wait_value = [](void*, const uint32_t*, uint32_t) { return 7; };
  Gate gate;
  EXPECT_THROW(gate.stop(calls, nullptr), Error);
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
