#include "transport/peer/silence_clock.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimit{2000};
constexpr milliseconds kSilent{1900};  // so that all have raised when the limit is over
const SilenceClock::TimePoint kStart{std::chrono::hours(1)};

TEST(SilenceClock, AHostThatNeverAnswersIsDoubtfulAndThenSilent) {
  SilenceClock clock(kLimit, kStart);
  for (milliseconds passed{}; passed <= 2 * kLimit; passed += milliseconds(50)) {
    clock.look(kStart + passed);
    EXPECT_EQ(clock.is_doubtful(kStart + passed), passed >= kLimit / 4) << passed.count();
    EXPECT_EQ(clock.is_silent(kStart + passed), passed >= kSilent) << passed.count();
  }
  EXPECT_EQ(clock.silent_at(), kStart + kSilent);
}

TEST(SilenceClock, AnAnswerStartsAnew) {
  SilenceClock clock(kLimit, kStart);
  const auto heard = kStart + milliseconds(1500);
  clock.look(heard);
  EXPECT_FALSE(clock.was_heard());
  clock.hear(heard);
  EXPECT_TRUE(clock.was_heard());
  EXPECT_FALSE(clock.is_doubtful(heard));
  EXPECT_EQ(clock.silent_at(), heard + kSilent);
  clock.hear(kStart);
  EXPECT_EQ(clock.silent_at(), heard + kSilent) << "an older answer says nothing";
}

TEST(SilenceClock, AProcessThatSleptItselfBlamesNobody) {
  SilenceClock clock(kLimit, kStart);
  const auto late = kStart + std::chrono::minutes(10);
  clock.look(late);
  EXPECT_FALSE(clock.is_silent(late));
  EXPECT_TRUE(clock.is_doubtful(late)) << "so it asks";
  // From here on it looks as often as it should.
  clock.look(late + kLimit / 4);
  EXPECT_FALSE(clock.is_silent(late + kLimit / 4));
  clock.look(late + kLimit / 2);
  EXPECT_TRUE(clock.is_silent(late + kLimit / 2));
}

TEST(SilenceClock, LooksSeveralTimesInTheLimit) {
  EXPECT_EQ(SilenceClock::period(kLimit), kLimit / 8);
  EXPECT_EQ(SilenceClock::period(std::chrono::hours(1)), std::chrono::seconds(1));
}

}  // namespace
}  // namespace q7x2
