#include "transport/task/wait_policy.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using TimePoint = WaitPolicy::TimePoint;

const TimePoint kStart{std::chrono::hours(1)};
constexpr microseconds kTick{1};

TEST(WaitPolicy, SpinsBeforeItSleeps) {
  const WaitPolicy policy(kStart, /*by_network=*/false, /*crowded=*/false, /*wanted=*/false);
  EXPECT_FALSE(policy.sleeps(kStart));
  EXPECT_FALSE(policy.sleeps(kStart + WaitPolicy::kSpin - kTick));
  EXPECT_TRUE(policy.sleeps(kStart + WaitPolicy::kSpin));
}

TEST(WaitPolicy, AnEventProlongsTheSpin) {
  WaitPolicy policy(kStart, false, false, false);
  const TimePoint event = kStart + WaitPolicy::kSpin;
  policy.saw_event(event);
  EXPECT_FALSE(policy.sleeps(event + WaitPolicy::kSpinAfterEvent - kTick));
  EXPECT_TRUE(policy.sleeps(event + WaitPolicy::kSpinAfterEvent));
}

TEST(WaitPolicy, AnEarlyEventDoesNotShortenTheSpin) {
  WaitPolicy policy(kStart, false, false, false);
  policy.saw_event(kStart);
  EXPECT_FALSE(policy.sleeps(kStart + WaitPolicy::kSpin - kTick));
}

TEST(WaitPolicy, YieldsNowAndThenWhereProcessorsSuffice) {
  WaitPolicy policy(kStart, false, false, false);
  for (int round = 0; round < 3; ++round) {
    for (int look = 1; look < WaitPolicy::kLooksPerYield; ++look) {
      EXPECT_FALSE(policy.yields());
    }
    EXPECT_TRUE(policy.yields());
  }
}

TEST(WaitPolicy, YieldsAfterEachLookWhereOthersMayNeedTheProcessor) {
  WaitPolicy crowded(kStart, false, /*crowded=*/true, false);
  WaitPolicy network(kStart, true, false, false);
  for (int look = 0; look < 3; ++look) {
    EXPECT_TRUE(crowded.yields());
    EXPECT_TRUE(network.yields());
  }
}

TEST(WaitPolicy, LooksBrieflyWhereRanksOutnumberTheProcessors) {
  const WaitPolicy policy(kStart, false, /*crowded=*/true, false);
  EXPECT_EQ(policy.progress_per_look(), WaitPolicy::kProgressWhereWanted);
}

TEST(WaitPolicy, AYieldThatReturnsAtOnceChangesNothing) {
  WaitPolicy policy(kStart, true, false, false);
  EXPECT_FALSE(policy.yielded(kStart, kStart + WaitPolicy::kAccepted));
  EXPECT_EQ(policy.progress_per_look(), WaitPolicy::kProgressPerLook);
}

TEST(WaitPolicy, AnAcceptedYieldMakesALongCallSleepSoon) {
  WaitPolicy policy(kStart, true, false, false);
  const TimePoint late = kStart + WaitPolicy::kShortCall;
  policy.saw_event(late);
  EXPECT_TRUE(policy.yielded(late, late + WaitPolicy::kAccepted + kTick));
  EXPECT_EQ(policy.progress_per_look(), WaitPolicy::kProgressWhereWanted);
  EXPECT_FALSE(policy.sleeps(late + WaitPolicy::kSpinWhereWanted - kTick));
  EXPECT_TRUE(policy.sleeps(late + WaitPolicy::kSpinWhereWanted));
}

TEST(WaitPolicy, AnAcceptedYieldKeepsAShortCallSpinning) {
  WaitPolicy policy(kStart, true, false, false);
  const TimePoint soon = kStart + WaitPolicy::kSpin;
  EXPECT_TRUE(policy.yielded(soon, soon + WaitPolicy::kAccepted + kTick));
  EXPECT_FALSE(policy.sleeps(soon + WaitPolicy::kSpin - kTick));
}

TEST(WaitPolicy, WithinAHostItDoesNotMatterThatTheProcessorIsWanted) {
  WaitPolicy policy(kStart, false, false, /*wanted=*/true);
  EXPECT_EQ(policy.progress_per_look(), WaitPolicy::kProgressPerLook);
  EXPECT_FALSE(policy.yielded(kStart, kStart + std::chrono::seconds(1)));
}

}  // namespace
}  // namespace q7x2
