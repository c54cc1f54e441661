// LateRanks: when a rank warns of others that keep it waiting.
#include "transport/bootstrap/late_ranks.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How often a wait that begins now warns, looked at after these times.
int warnings(LateRanks& late, Clock::time_point began, std::initializer_list<milliseconds> looks) {
  int count = 0;
  for (const milliseconds after : looks) {
    late.look(began + after, [&] {
      ++count;
      return std::vector<int>{2};
    });
  }
  return count;
}

LateRanks late_ranks(int rank, int size, milliseconds timeout) {
  return LateRanks({.rank = rank,
                    .size = size,
                    .group = "test",
                    .timeout = timeout,
                    .monitor = nullptr,
                    .explain = [](int) { return std::string(); }});
}

TEST(LateRanks, WarnsOnceAfterHalfOfTheTimeout) {
  LateRanks late = late_ranks(1, 4, milliseconds(4000));
  const auto began = Clock::now();
  late.begin(began + milliseconds(4000));
  EXPECT_EQ(warnings(late, began, {milliseconds(1500)}), 0);
  EXPECT_EQ(warnings(late, began, {milliseconds(2500), milliseconds(3000)}), 1);
}

// The deadline counts from the first of several waits.
TEST(LateRanks, WarnsBeforeTheDeadlineOfAWaitThatBeganLate) {
  LateRanks late = late_ranks(1, 4, milliseconds(4000));
  const auto began = Clock::now();
  late.begin(began + milliseconds(600));
  EXPECT_EQ(warnings(late, began, {milliseconds(200)}), 0);
  EXPECT_EQ(warnings(late, began, {milliseconds(400)}), 1);
}

TEST(LateRanks, OnlyRankZeroOfALargeGroupWarns) {
  for (const int rank : {0, 1}) {
    LateRanks late = late_ranks(rank, 100, milliseconds(1000));
    const auto began = Clock::now();
    late.begin(began + milliseconds(1000));
    EXPECT_EQ(warnings(late, began, {milliseconds(900)}), rank == 0 ? 1 : 0);
  }
}

}  // namespace
}  // namespace q7x2
