// SignalBoard: signals are counted for each rank, and no sleeper misses one.
#include "executor/window/signal_board.h"

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr int kRanks = 3;
constexpr std::chrono::milliseconds kLong{10'000};

struct alignas(64) Memory {
  std::array<std::byte, 4096> bytes{};
};

TEST(SignalBoard, CountsForEachRank) {
  Memory memory;
  SignalBoard board(memory.bytes.data());
  ASSERT_LE(SignalBoard::bytes(kRanks), memory.bytes.size());
  SignalBoard other(memory.bytes.data());  // as another process sees it
  board.signal(2);
  board.signal(2);
  board.signal(0);
  EXPECT_EQ(other.count(0), 1u);
  EXPECT_EQ(other.count(1), 0u);
  EXPECT_EQ(other.count(2), 2u);
  EXPECT_FALSE(other.is_closed());
  board.close();
  EXPECT_TRUE(other.is_closed());
}

TEST(SignalBoard, SleepsOnlyWhileTheSignalIsMissing) {
  Memory memory;
  SignalBoard board(memory.bytes.data());
  board.signal(1);
  board.sleep(1, 1, kLong);  // returns at once
  const auto begun = std::chrono::steady_clock::now();
  board.sleep(1, 2, std::chrono::milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(19));
}

// Each thread waits for the other one's signal before it gives its next; one that is missed would
// cost the whole limit.
TEST(SignalBoard, NoSleeperMissesASignal) {
  constexpr uint64_t kTurns = 3000;
  std::array<Memory, 2> memories;
  const auto play = [&](int me) {
    SignalBoard mine(memories[static_cast<size_t>(me)].bytes.data());
    SignalBoard its(memories[static_cast<size_t>(1 - me)].bytes.data());
    for (uint64_t turn = 1; turn <= kTurns; ++turn) {
      its.signal(me);
      while (mine.count(1 - me) < turn) mine.sleep(1 - me, turn, kLong);
    }
  };
  const auto begun = std::chrono::steady_clock::now();
  std::thread first(play, 0);
  std::thread second(play, 1);
  first.join();
  second.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kLong);
}

}  // namespace
}  // namespace q7x2
