#include "transport/run/notifier.h"

#include <future>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

TEST(Notifier, RunsCallbacksInTheirOrder) {
  // A busy machine may stop a callback for longer than the usual patience.
  Notifier notifier(std::chrono::minutes(1));
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    notifier.post([&order, i] { order.push_back(i); });
  }
  notifier.stop();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Notifier, ACallbackMayWaitForALaterOne) {
  constexpr int kDepth = 10;
  Notifier notifier;
  std::vector<std::promise<void>> done(kDepth + 1);
  for (int i = 0; i < kDepth; ++i) {
    notifier.post([&done, i] {
      done[static_cast<size_t>(i) + 1].get_future().wait();
      done[static_cast<size_t>(i)].set_value();
    });
  }
  auto first = done[0].get_future();
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  notifier.post([&done] { done[kDepth].set_value(); });
  first.get();
}

TEST(Notifier, CallbacksThatDoNotReturnDelayNobody) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  const auto some_time = [&random] { return std::chrono::microseconds(random() % 1500); };
  Notifier notifier;
  for (int turn = 0; turn < 300; ++turn) {
    // Threads come to rest and begin to wait for their turn in any order.
    for (unsigned i = random() % 4; i > 0; --i) {
      notifier.post([time = some_time()] { std::this_thread::sleep_for(time); });
      std::this_thread::sleep_for(some_time());
    }
    std::promise<void> release;
    const std::shared_future<void> released = release.get_future().share();
    for (unsigned i = random() % 4; i > 0; --i) {
      notifier.post([released] { released.wait(); });
      std::this_thread::sleep_for(some_time() / 3);
    }
    std::promise<void> quick;
    notifier.post([&quick] { quick.set_value(); });
    const auto waited = quick.get_future().wait_for(std::chrono::seconds(60));
    release.set_value();
    ASSERT_EQ(waited, std::future_status::ready) << "turn " << turn << ", seed " << kSeed;
  }
}

TEST(Notifier, ACallbackMayPostAndWaitForIt) {
  Notifier notifier;
  std::promise<void> outer;
  notifier.post([&] {
    std::promise<void> inner;
    notifier.post([&inner] { inner.set_value(); });
    inner.get_future().wait();
    outer.set_value();
  });
  outer.get_future().get();
}

TEST(Notifier, StopRunsWhatIsLeftEvenWhereItWaitsForEachOther) {
  Notifier notifier;
  std::promise<void> later;
  bool waited = false;
  notifier.post([&] {
    later.get_future().wait();
    waited = true;
  });
  notifier.post([&later] { later.set_value(); });
  notifier.stop();
  EXPECT_TRUE(waited);
}

TEST(Notifier, DropsWhatComesAfterStop) {
  Notifier notifier;
  notifier.stop();
  auto held = std::make_shared<int>();
  notifier.post([held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Notifier, TheCallerKeepsWhatComesAfterStop) {
  Notifier notifier;
  EXPECT_TRUE(notifier.post([] {}));
  notifier.stop();
  int calls = 0;
  std::function<void()> callback = [&calls] { ++calls; };
  EXPECT_FALSE(notifier.post(std::move(callback)));
  callback();
  EXPECT_EQ(calls, 1);
}

TEST(Notifier, StopsAtADeadlineWhereCallbacksDoNotReturn) {
  // Never destroyed: a callback that has not returned uses it.
  static auto& notifier = *new Notifier;
  std::promise<void> release;
  std::promise<void> returned;
  notifier.post([&] {
    release.get_future().wait();
    returned.set_value();
  });
  EXPECT_TRUE(notifier.is_busy());
  EXPECT_FALSE(notifier.stop(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
  EXPECT_FALSE(notifier.post([] { FAIL(); }));
  release.set_value();
  returned.get_future().get();
}

TEST(Notifier, StopsBeforeTheDeadlineWhereCallbacksReturn) {
  Notifier notifier;
  bool ran = false;
  notifier.post([&ran] { ran = true; });
  EXPECT_TRUE(notifier.stop(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  EXPECT_TRUE(ran);
  EXPECT_FALSE(notifier.is_busy());
}

TEST(Notifier, KnowsItsThreads) {
  Notifier notifier;
  bool mine = false;
  notifier.post([&] { mine = notifier.is_current_thread(); });
  notifier.stop();
  EXPECT_TRUE(mine);
  EXPECT_FALSE(notifier.is_current_thread());
}

}  // namespace
}  // namespace q7x2
