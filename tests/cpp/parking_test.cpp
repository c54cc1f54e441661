#include "transport/task/parking.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "scarce_files.h"
#include "slowdown.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

// For what must end by a wake-up. Shorter than the time that a test may take.
constexpr milliseconds kLong{60'000};

class ParkingTest : public ::testing::Test {
 protected:
  bool is_readable(int fd) const {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }

  std::atomic<size_t> unfinished_{0};
  Parking parking_{unfinished_};
};

TEST_F(ParkingTest, AWakeUpBeforeTheSleepCounts) {
  Parking::Waiter waiter(parking_);
  waiter.announce();
  parking_.wake_waiters();
  EXPECT_TRUE(waiter.sleep({}, kLong));
  // It counts once.
  waiter.announce();
  EXPECT_FALSE(waiter.sleep({}, milliseconds(1)));
}

TEST_F(ParkingTest, OneWakeUpWakesEveryWaiter) {
  constexpr int kWaiters = 8;
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> announced{0};
    std::atomic<int> returned{0};
    std::atomic<int> woken{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kWaiters; ++i) {
      threads.emplace_back([&] {
        Parking::Waiter waiter(parking_);
        waiter.announce();
        ++announced;
        woken += waiter.sleep({}, kLong) ? 1 : 0;
        ++returned;
        while (announced < kWaiters + 1) {
          std::this_thread::yield();  // a waiter that leaves wakes the others
        }
      });
    }
    while (announced < kWaiters) {
      std::this_thread::yield();
    }
    parking_.wake_waiters();
    while (returned < kWaiters) {
      std::this_thread::yield();
    }
    ++announced;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(woken, kWaiters);
  }
}

TEST_F(ParkingTest, AnEventEndsTheSleep) {
  Parking::Waiter waiter(parking_);
  const WakeFd event;
  event.signal();
  waiter.announce();
  EXPECT_FALSE(waiter.sleep({{event, POLLIN, 0}}, kLong));
}

TEST_F(ParkingTest, AWaiterThatLeavesWakesTheOthers) {
  Parking::Waiter stays(parking_);
  {
    const Parking::Waiter leaves(parking_);
    stays.announce();
  }
  EXPECT_TRUE(stays.sleep({}, kLong));
}

TEST_F(ParkingTest, TheLastWaiterHandsUnfinishedWorkToTheDriver) {
  parking_.announce_driver(/*sleeps=*/true);
  { const Parking::Waiter waiter(parking_); }
  EXPECT_FALSE(is_readable(parking_.driver_fd()));
  unfinished_ = 1;
  {
    const Parking::Waiter waiter(parking_);
    EXPECT_TRUE(parking_.has_waiters());
  }
  EXPECT_FALSE(parking_.has_waiters());
  EXPECT_TRUE(is_readable(parking_.driver_fd()));
}

TEST_F(ParkingTest, TheDriverIsWokenOnlyWhereItSleeps) {
  parking_.wake_driver();
  EXPECT_FALSE(is_readable(parking_.driver_fd()));
  parking_.announce_driver(true);
  parking_.wake_driver();
  EXPECT_TRUE(is_readable(parking_.driver_fd()));
  parking_.driver_is_up();
  EXPECT_FALSE(is_readable(parking_.driver_fd()));
  parking_.stop_driver();
  EXPECT_TRUE(is_readable(parking_.driver_fd()));
}

TEST_F(ParkingTest, AWaiterThatCanHaveNoSpotSleepsBriefly) {
  if (test::kSlowdown > 1) GTEST_SKIP() << "a sanitizer looks at an exception through a pipe";
  Parking::Waiter first(parking_);
  first.announce();
  Parking::Waiter second(parking_);
  {
    const test::NoMoreFiles none;
    second.announce();
  }
  EXPECT_FALSE(second.sleep({}, kLong));
  parking_.wake_waiters();
  EXPECT_TRUE(first.sleep({}, kLong));
}

}  // namespace
}  // namespace q7x2
