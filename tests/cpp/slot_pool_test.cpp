// Slots that processes share: never more than the limit, and those of a dead process are free
// again.
#include "servers/slot_pool.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "slot_page.h"

namespace q7x2 {
namespace {

using test::SlotPage;

TEST(SlotPool, WithoutALimitThereAreAlwaysEnough) {
  SlotPool pool;
  EXPECT_EQ(pool.take(size_t{1} << 40, 16), 16U);
  pool.give_back(size_t{1} << 40, 16);
}

TEST(SlotPool, ProcessesShareWhatThereIs) {
  const SlotPage page(2);
  SlotPool one = page.pool(0, 1000);
  SlotPool other = page.pool(1, 1000);
  EXPECT_EQ(one.take(100, 6), 6U);
  EXPECT_EQ(other.take(150, 6), 2U);  // of 400 bytes
  EXPECT_EQ(one.take(100, 1), 1U);
  EXPECT_EQ(one.take(1, 1), 0U);
  other.give_back(150, 2);
  EXPECT_EQ(one.take(300, 5), 1U);
  page.clear(0);  // its process has died
  EXPECT_EQ(other.take(1000, 3), 1U);
}

TEST(SlotPool, CallsThatNeedNoMemoryAlwaysHaveSlots) {
  const SlotPage page(1);
  SlotPool pool = page.pool(0, 0);
  EXPECT_EQ(pool.take(0, 16), 16U);
  EXPECT_EQ(pool.take(1, 16), 0U);
}

TEST(SlotPool, ManyThatTakeAtOnceNeverHaveTooMany) {
  constexpr uint64_t kBytes = 100;
  const SlotPage page(4);
  std::atomic<int64_t> held{0};
  std::atomic<int64_t> most{0};
  std::vector<std::thread> threads;
  for (size_t process = 0; process < 4; ++process) {
    threads.emplace_back([&, process] {
      SlotPool pool = page.pool(process, kBytes);
      for (int i = 0; i < 5000; ++i) {
        const size_t count = pool.take(7, 1 + static_cast<size_t>(i) % 9);
        const auto bytes = static_cast<int64_t>(7 * count);
        const int64_t now = held += bytes;
        int64_t before = most;
        while (now > before && !most.compare_exchange_weak(before, now)) {
        }
        held -= bytes;
        pool.give_back(7, count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, static_cast<int64_t>(kBytes));
  EXPECT_GT(most, 0);
  EXPECT_EQ(page.pool(0, kBytes).take(kBytes, 1), 1U);  // nothing was lost
}

TEST(SlotPool, AFileWithoutTheNumberIsRefused) {
  const SlotPage page(2);
  try {
    page.pool(2, 1000);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(),
                 "a pool of slots for 2 processes has no number 2: expected a file of 8 bytes for "
                 "each process");
  }
  EXPECT_THROW(SlotPool(-1, 0, 1), Error);
}

TEST(TakenSlots, TooFewAreNone) {
  const SlotPage page(1);
  const auto pool = std::make_shared<SlotPool>(page.pool(0, 1000));
  {
    TakenSlots many(pool, 100, 4, 6);
    EXPECT_EQ(many.count(), 6U);
    EXPECT_EQ(TakenSlots(pool, 100, 4, 16).count(), 4U);
    const TakenSlots few(pool, 100, 5, 16);
    EXPECT_EQ(few.count(), 0U);
    many.give_back();
    many.give_back();
    EXPECT_EQ(TakenSlots(pool, 100, 10, 10).count(), 10U);
  }
  EXPECT_EQ(pool->take(100, 10), 10U);
}

TEST(TakenSlots, MayBeGivenBackAfterTheServer) {
  const SlotPage page(1);
  auto pool = std::make_shared<SlotPool>(page.pool(0, 1000));
  std::optional<TakenSlots> late(std::in_place, pool, 100, 1, 10);
  pool.reset();
  late.reset();
  EXPECT_EQ(page.pool(0, 1000).take(100, 10), 10U);
}

}  // namespace
}  // namespace q7x2
