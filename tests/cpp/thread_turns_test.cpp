#include "base/thread_turns.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

/// The kernel brings what a running thread has run up to date at its clock's ticks, at the
/// latest after 10 ms, so that what it says first may lack as much.
constexpr int64_t kTick = 10'000'000;

TEST(ThreadTurns, CountForHowLongAThreadRan) {
  const auto began = std::chrono::steady_clock::now();
  const auto before = turns_of_this_thread();
  if (!before) GTEST_SKIP() << "this kernel does not count turns";
  while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(50)) {
  }
  const auto after = turns_of_this_thread();
  ASSERT_TRUE(after);
  EXPECT_EQ(after->thread, before->thread);
  const auto took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  EXPECT_GT(after->ran, before->ran);
  EXPECT_GE(after->waited, before->waited);
  EXPECT_LE(after->ran - before->ran, took + kTick);
}

TEST(ThreadTurns, AreThoseOfTheCallingThread) {
  const auto own = turns_of_this_thread();
  if (!own) GTEST_SKIP() << "this kernel does not count turns";
  std::thread([&] {
    const auto other = turns_of_this_thread();
    ASSERT_TRUE(other);
    EXPECT_NE(other->thread, own->thread);
  }).join();
}

}  // namespace
}  // namespace q7x2
