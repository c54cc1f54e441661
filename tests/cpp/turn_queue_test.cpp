// Which collectives of a group run, and which wait for their turn.
#include "transport/group/turn_queue.h"

#include <memory>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "simple_task.h"

namespace q7x2 {
namespace {

using test::SimpleTask;

class TurnQueueTest : public ::testing::Test {
 protected:
  /// Submits a task, and begins it if its turn is now.
  std::shared_ptr<SimpleTask> submit(bool has_memory = true) {
    auto task = std::make_shared<SimpleTask>();
    task->has_memory = has_memory;
    if (turns_.submit(locked_, task)) turns_.begin(locked_, *task);
    return task;
  }
  bool has_begun(SimpleTask& task) { return task.record(locked_).is_started; }
  void end(SimpleTask& task) {
    task.end(locked_);
    EXPECT_TRUE(turns_.end(locked_, task));
  }
  size_t begin_waiting() {
    size_t count = 0;
    while (const auto next = turns_.take_next(locked_)) {
      turns_.begin(locked_, *next);
      ++count;
    }
    return count;
  }

  ReactorLock lock_;
  Locked locked_{lock_};
  TurnQueue turns_;
};

TEST_F(TurnQueueTest, NumbersCollectivesInTheirOrder) {
  for (uint64_t number = 0; number < 5; ++number) {
    EXPECT_EQ(submit()->record(locked_).sequence, number);
  }
  EXPECT_EQ(turns_.num_begun(), 5U);
  EXPECT_EQ(turns_.num_running(), 5U);
}

TEST_F(TurnQueueTest, RunsAFixedNumberAtOnce) {
  std::vector<std::shared_ptr<SimpleTask>> tasks;
  for (size_t i = 0; i < TurnQueue::kMostRunning + 2; ++i) tasks.push_back(submit());
  EXPECT_EQ(turns_.num_running(), TurnQueue::kMostRunning);
  EXPECT_FALSE(has_begun(*tasks[TurnQueue::kMostRunning]));
  EXPECT_TRUE(tasks[TurnQueue::kMostRunning]->record(locked_).has_waited);
  EXPECT_EQ(begin_waiting(), 0U);
  end(*tasks[3]);
  EXPECT_EQ(begin_waiting(), 1U);
  EXPECT_TRUE(has_begun(*tasks[TurnQueue::kMostRunning]));
  EXPECT_EQ(tasks[TurnQueue::kMostRunning]->record(locked_).sequence, TurnQueue::kMostRunning);
}

TEST_F(TurnQueueTest, AShortCallPassesALongOneButNotWithoutEnd) {
  const auto longest = submit();
  for (uint64_t i = 1; i < TurnQueue::kMostAhead; ++i) end(*submit());
  const auto next = submit();
  EXPECT_FALSE(has_begun(*next));
  EXPECT_EQ(turns_.oldest(locked_), longest.get());
  end(*longest);
  EXPECT_EQ(begin_waiting(), 1U);
  EXPECT_EQ(turns_.oldest(locked_), next.get());
}

// A rank may not know yet that call 2 has failed.
TEST_F(TurnQueueTest, StaysNearACollectiveThatIsNotInProgress) {
  for (int i = 0; i < 3; ++i) end(*submit());
  turns_.stay_near(2);
  for (uint64_t i = 3; i < 2 + TurnQueue::kMostAhead; ++i) end(*submit());
  const auto next = submit();
  EXPECT_FALSE(has_begun(*next));
  EXPECT_TRUE(turns_.is_waiting(*next));
  EXPECT_EQ(begin_waiting(), 0U);
  turns_.stay_near(3);
  EXPECT_EQ(begin_waiting(), 1U);
  EXPECT_FALSE(turns_.is_waiting(*next));
  EXPECT_EQ(next->record(locked_).sequence, 2 + TurnQueue::kMostAhead);
}

TEST_F(TurnQueueTest, NoneOvertakesOneThatWaitsForMemory) {
  const auto first = submit(/*has_memory=*/false);
  const auto second = submit();
  EXPECT_FALSE(has_begun(*first));
  EXPECT_FALSE(has_begun(*second));
  EXPECT_EQ(begin_waiting(), 0U);
  first->has_memory = true;
  EXPECT_EQ(begin_waiting(), 2U);
  EXPECT_EQ(second->record(locked_).sequence, 1U);
}

// Other ranks number it, too.
TEST_F(TurnQueueTest, OneThatEndsWhileItWaitsKeepsItsNumber) {
  const auto first = submit(/*has_memory=*/false);
  const auto second = submit();
  first->end(locked_);
  EXPECT_EQ(begin_waiting(), 1U);
  EXPECT_TRUE(has_begun(*second));
  EXPECT_EQ(second->record(locked_).sequence, 1U);
  EXPECT_FALSE(turns_.end(locked_, *first)) << "it had no turn";
}

TEST_F(TurnQueueTest, OneThatCannotBeginKeepsItsNumber) {
  class Broken : public SimpleTask {
   public:
    bool reserve(Locked&) override { throw std::bad_alloc(); }
  };
  const std::shared_ptr<Task> broken = std::make_shared<Broken>();
  EXPECT_THROW(turns_.submit(locked_, broken), std::bad_alloc);
  EXPECT_EQ(broken->record(locked_).sequence, 0U);
  EXPECT_EQ(submit()->record(locked_).sequence, 1U);
}

TEST_F(TurnQueueTest, SaysWhatHasNotEnded) {
  std::vector<std::shared_ptr<SimpleTask>> tasks;
  for (int i = 0; i < 5; ++i) tasks.push_back(submit());
  end(*tasks[1]);
  tasks[3]->end(locked_);  // over, but not done
  EXPECT_EQ(turns_.unended(locked_), Unended(0b10101));
}

TEST_F(TurnQueueTest, FindsThemByNumber) {
  const auto first = submit();
  const auto second = submit();
  const auto waits = submit(/*has_memory=*/false);
  EXPECT_EQ(turns_.find_running(locked_, 1), second.get());
  EXPECT_EQ(turns_.find_running(locked_, 2), nullptr);
  EXPECT_EQ(turns_.find(locked_, 2), waits.get());
  EXPECT_EQ(turns_.find(locked_, 3), nullptr);
  EXPECT_EQ(turns_.oldest_number(locked_), 0U);
  first->end(locked_);
  EXPECT_EQ(turns_.find(locked_, 0), nullptr) << "it is over";
  EXPECT_EQ(turns_.oldest_number(locked_), 1U);
  EXPECT_EQ(turns_.num_running(), 2U) << "but not done";
  second->end(locked_);
  EXPECT_EQ(turns_.oldest(locked_), nullptr);
  EXPECT_EQ(turns_.oldest_number(locked_), 2U);
}

TEST_F(TurnQueueTest, ForgetsThoseThatWait) {
  submit(/*has_memory=*/false);
  submit();
  EXPECT_TRUE(turns_.has_waiting());
  turns_.drop_waiting(locked_);
  EXPECT_TRUE(turns_.is_idle());
  EXPECT_EQ(submit()->record(locked_).sequence, 2U);
}

}  // namespace
}  // namespace q7x2
