// When the path of a connection counts as blocked, and what only looks so.
#include "transport/net/path_clock.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimit{2000};
constexpr milliseconds kPeriod{250};
constexpr milliseconds kBlocked{1900};  // so that all have raised when the limit is over
const PathClock::TimePoint kStart{std::chrono::hours(1)};

/// A connection of which nothing is acknowledged from time 0 on. TCP sends again at 0.2, 0.6, 1.4,
/// 3.0 s ...
PathSample black_hole(milliseconds passed) {
  PathSample sample;
  sample.unacknowledged = 10;
  sample.acknowledged = 1000;
  sample.sent = 100'000;
  sample.sent_again = 10;
  sample.since_acknowledgement = passed;
  milliseconds last{0};
  for (milliseconds next{200}; next <= passed; next = 2 * next + milliseconds(200)) {
    last = next;
    ++sample.retransmissions;
  }
  sample.since_sent = passed - last;
  return sample;
}

/// When the path counts as blocked; the limit times ten if never.
template <typename Sample, typename Answers>
milliseconds blocked_after(const Sample& sample, const Answers& answers) {
  PathClock clock(kLimit);
  for (milliseconds passed{0}; passed < 10 * kLimit; passed += kPeriod) {
    if (clock.look(sample(passed), kStart + passed, kPeriod, [&] { return answers(passed); })) {
      return passed;
    }
  }
  return 10 * kLimit;
}

bool always(milliseconds) {
  return true;
}

TEST(PathClock, WhatIsNeverAcknowledgedIsBlocked) {
  EXPECT_LE(blocked_after(black_hole, always), kBlocked + kPeriod);
  EXPECT_GE(blocked_after(black_hole, always), kBlocked);
}

TEST(PathClock, AConnectionThatIsNotMadeIsBlocked) {
  const auto attempt = [](milliseconds passed) {
    PathSample sample;
    sample.is_connecting = true;
    sample.unacknowledged = 1;
    sample.retransmissions = static_cast<uint32_t>(passed / milliseconds(1000));
    sample.since_sent = sample.since_acknowledgement = std::chrono::hours(1);
    return sample;
  };
  EXPECT_LE(blocked_after(attempt, always), milliseconds(2250));
}

TEST(PathClock, ASlowPathIsNotBlocked) {
  const auto sample = [](milliseconds passed) {
    PathSample slow = black_hole(milliseconds(1000));
    slow.acknowledged = static_cast<uint64_t>(passed / milliseconds(1000));
    slow.since_acknowledgement = passed % milliseconds(1000);
    return slow;
  };
  EXPECT_EQ(blocked_after(sample, always), 10 * kLimit);
}

// Its kernel answers each question for room, which come ever more rarely.
TEST(PathClock, AReceiverThatDoesNotReadIsNotBlocked) {
  const auto shut = [](milliseconds passed) {
    PathSample sample = black_hole(passed);
    sample.is_window_open = false;
    return sample;
  };
  EXPECT_EQ(blocked_after(shut, always), 10 * kLimit) << "what it had no room for";
  const auto asked = [](milliseconds passed) {
    PathSample sample;
    sample.is_window_open = false;
    sample.probes = passed % milliseconds(1000) < milliseconds(100) ? 1 : 0;
    sample.since_acknowledgement = passed % milliseconds(1000);
    return sample;
  };
  EXPECT_EQ(blocked_after(asked, always), 10 * kLimit);
}

TEST(PathClock, QuestionsForRoomThatNobodyAnswersAreBlocked) {
  const auto unanswered = [](milliseconds passed) {
    PathSample sample = black_hole(passed);
    sample.unacknowledged = 0;
    sample.is_window_open = false;
    std::swap(sample.probes, sample.retransmissions);
    return sample;
  };
  EXPECT_LE(blocked_after(unanswered, always), milliseconds(2500));
}

// The link was out for as long as the limit nearly, and TCP has not sent again since.
TEST(PathClock, AnOutageOfTheWholeLinkDoesNotCount) {
  constexpr milliseconds kOutage{1800};
  const auto answers = [&](milliseconds passed) { return passed < kLimit / 4 || passed > kOutage; };
  const auto mended = [&](milliseconds passed) {
    PathSample sample = black_hole(passed);
    if (sample.since_sent < passed - kOutage) {
      sample.acknowledged += sample.retransmissions;
      sample.unacknowledged = 0;
    }
    return sample;
  };
  EXPECT_EQ(blocked_after(mended, answers), 10 * kLimit);
  EXPECT_LE(blocked_after(black_hole, answers), milliseconds(4000)) << "blocked for good";
}

// Where many packets are lost, some are lost again and again.
TEST(PathClock, LossNeedsMoreEvidence) {
  const auto lossy = [](milliseconds passed) {
    PathSample sample = black_hole(passed);
    sample.sent_again = sample.sent / 20;
    sample.acknowledged += passed > kPeriod ? 1 : 0;  // there was progress before
    return sample;
  };
  EXPECT_GE(blocked_after(lossy, always), milliseconds(6000));
  EXPECT_LT(blocked_after(lossy, always), 10 * kLimit);
}

TEST(PathClock, AProcessThatSleptItselfBlamesNobody) {
  PathClock clock(kLimit);
  const auto answers = [] { return true; };
  EXPECT_FALSE(clock.look(black_hole(milliseconds(100)), kStart, kPeriod, answers));
  const auto late = std::chrono::minutes(10);
  EXPECT_FALSE(clock.look({}, kStart + late, kPeriod, answers)) << "nothing is on its way";
  PathSample idle = black_hole(milliseconds(10));
  idle.since_acknowledgement = late;
  EXPECT_FALSE(clock.look(idle, kStart + late, kPeriod, answers));
  EXPECT_FALSE(clock.look(idle, kStart + late + kPeriod, kPeriod, answers));
}

}  // namespace
}  // namespace q7x2
