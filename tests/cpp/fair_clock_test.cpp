#include "plan/cost/fair_clock.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

FairClock::Clock::time_point time_now;
FairClock::Clock::time_point now() {
  return time_now;
}

void pass(int nanoseconds) {
  time_now += std::chrono::nanoseconds(nanoseconds);
}

TEST(FairClock, ACallAloneTakesItsTime) {
  FairClock clock;
  for (const int took : {10, 70}) {
    pass(1000);
    const int64_t began = clock.begin(true, now);
    pass(took);
    EXPECT_EQ(clock.end(true, began, now), took);
  }
}

TEST(FairClock, CallsAtOnceShareTheTime) {
  FairClock clock;
  const int64_t first = clock.begin(true, now);
  pass(10);
  const int64_t second = clock.begin(true, now);
  pass(20);
  const int64_t third = clock.begin(false, now);
  pass(30);
  EXPECT_EQ(clock.end(true, first, now), 10 + 20 / 2 + 30 / 3);
  pass(40);
  EXPECT_EQ(clock.end(true, second, now), 20 / 2 + 30 / 3 + 40 / 2);
  clock.end(false, third, now);
}

TEST(FairClock, CallsThatAreNotMeasuredCount) {
  FairClock clock;
  const int64_t first = clock.begin(false, now);
  pass(100);
  const int64_t second = clock.begin(true, now);
  pass(10);
  clock.end(false, first, now);
  pass(10);
  EXPECT_EQ(clock.end(true, second, now), 10 / 2 + 10);
}

TEST(FairClock, ReadsNoTimeWithoutNeed) {
  FairClock clock;
  const auto never = [] {
    ADD_FAILURE() << "the time was read";
    return FairClock::Clock::time_point{};
  };
  const int64_t began = clock.begin(false, never);
  clock.end(false, began, never);
}

}  // namespace
}  // namespace q7x2
