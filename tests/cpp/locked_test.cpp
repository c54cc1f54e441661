// Who gets the reactor's lock if several threads want it.
#include "transport/ucx/locked.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

void await_wish(const ReactorLock& lock) {
  while (!lock.is_wanted()) std::this_thread::yield();
}

TEST(ReactorLock, AThreadThatTakesItAgainAndAgainGivesWay) {
  constexpr int kRounds = 100;
  ReactorLock lock;
  std::atomic<int> round{0};
  std::atomic<int> served{0};
  auto locked = std::make_unique<Locked>(lock);
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round < i) std::this_thread::yield();
      const Locked own(lock);
      served = i;
    }
  });
  int at_once = 0;
  for (int i = 1; i <= kRounds; ++i) {
    round = i;
    await_wish(lock);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // now it sleeps
    locked.reset();
    lock.let_others_first();
    locked = std::make_unique<Locked>(lock);
    at_once += served == i ? 1 : 0;
    locked.reset();
    while (served < i) std::this_thread::yield();
    locked = std::make_unique<Locked>(lock);
  }
  locked.reset();
  other.join();
  // Else it is hardly ever. On a busy machine the other thread may not run in time.
  EXPECT_GE(at_once, kRounds / 4);
}

TEST(ReactorLock, NobodyTriesItWhileAnotherThreadWaits) {
  ReactorLock lock;
  ASSERT_TRUE(lock.try_lock());
  auto locked = std::make_unique<Locked>(lock, std::adopt_lock);
  std::thread other([&] { const Locked own(lock); });
  await_wish(lock);
  locked.reset();
  other.join();
  EXPECT_FALSE(lock.is_wanted());
  ASSERT_TRUE(lock.try_lock());
  const Locked again(lock, std::adopt_lock);
}

}  // namespace
}  // namespace q7x2
