#include "transport/task/wait_meter.h"

#include <chrono>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using TimePoint = WaitMeter::TimePoint;

TimePoint at(int64_t nanoseconds) {
  return TimePoint(std::chrono::nanoseconds(nanoseconds));
}

void wait(WaitMeter& meter, int rank, int64_t until) {
  meter.woken_by(rank);
  meter.end(at(until));
}

TEST(WaitMeter, CountsTheTimeForTheRankWhoseMessageEndsIt) {
  WaitMeter meter;
  meter.begin(at(100));
  wait(meter, 1, 110);
  wait(meter, 2, 140);
  meter.restart(at(200));  // a job until then
  wait(meter, 1, 205);
  EXPECT_EQ(meter.nanoseconds(), 10 + 30 + 5);
  EXPECT_EQ(meter.longest().rank, 2);
  EXPECT_EQ(meter.longest().nanoseconds, 30);
}

TEST(WaitMeter, CountsNothingBeforeItBegins) {
  WaitMeter meter;
  wait(meter, 1, 50);
  EXPECT_EQ(meter.nanoseconds(), 0);
  EXPECT_EQ(meter.longest().rank, -1);
}

TEST(WaitMeter, AJobThatWasToldOfLateTakesNoWaitBack) {
  WaitMeter meter;
  meter.begin(at(0));
  meter.restart(at(30));
  meter.restart(at(20));
  wait(meter, 1, 40);
  EXPECT_EQ(meter.nanoseconds(), 10);
}

TEST(WaitMeter, LeavesOutWorkThatAMessageLedTo) {
  WaitMeter meter;
  meter.begin(at(0));
  meter.woken_by(1);
  meter.leave_out(at(30), at(90));
  EXPECT_FALSE(meter.is_ending());
  wait(meter, 2, 95);
  EXPECT_EQ(meter.nanoseconds(), 30 + 5);
  EXPECT_EQ(meter.longest().rank, 1);
}

TEST(WaitMeter, NobodyInParticularIsNotTheLongest) {
  WaitMeter meter;
  meter.begin(at(0));
  wait(meter, -1, 100);
  wait(meter, 3, 110);
  EXPECT_EQ(meter.nanoseconds(), 110);
  EXPECT_EQ(meter.longest().rank, 3);
}

TEST(WaitMeter, FindsTheSlowRankAmongMany) {
  WaitMeter meter;
  meter.begin(at(0));
  int64_t now = 0;
  for (int round = 0; round < 20; ++round) {
    for (int rank = 0; rank < 40; ++rank) wait(meter, rank, now += rank == 17 ? 100 : 1);
  }
  EXPECT_EQ(meter.nanoseconds(), now);
  EXPECT_EQ(meter.longest().rank, 17);
  EXPECT_GE(meter.longest().nanoseconds, 20 * 100);
  EXPECT_LE(meter.longest().nanoseconds, now);
}

}  // namespace
}  // namespace q7x2
