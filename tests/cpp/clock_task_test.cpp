#include "executor/probe/clock_task.h"

#include <chrono>

#include <gtest/gtest.h>

#include "ranks.h"

namespace q7x2 {
namespace {

using test::Rank;
using test::run_ranks;

constexpr std::chrono::seconds kTimeout{30};
constexpr std::chrono::seconds kBehind{5};

TimePoint clock_that_is_behind() {
  return Clock::now() - kBehind;
}

TEST(ClockTask, RanksOfOneClockFindNoOffset) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    const ClockOffset found = compare_clocks(group, {1, 2}, kTimeout);
    if (rank.rank == 0) return;
    EXPECT_GT(found.uncertainty, 0);
    EXPECT_LE(std::abs(found.nanoseconds), found.uncertainty);
  });
}

TEST(ClockTask, FindsAnOffset) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    const ClockOffset found =
        compare_clocks(group, {1}, kTimeout, rank.rank == 0 ? Clock::now : clock_that_is_behind);
    if (rank.rank == 0) return;
    const int64_t expected = std::chrono::nanoseconds(kBehind).count();
    EXPECT_LE(std::abs(found.nanoseconds - expected), found.uncertainty);
    EXPECT_LT(found.uncertainty, expected);
  });
}

}  // namespace
}  // namespace q7x2
