// Jobs: work off the lock, who runs it, what becomes of its exceptions, and a task that is not done
// while a job is out.
#include "transport/run/job_queue.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::Rank;
using test::run_ranks;

constexpr size_t kLarge = JobQueue::kSmall + 1;

class FunctionJob final : public Job {
 public:
  explicit FunctionJob(std::function<void()> work) : work_(std::move(work)) {}

 private:
  void work() override { work_(); }

  const std::function<void()> work_;
};

/// Gives out all its jobs at once, and is over when all have run.
class JobsTask final : public Task {
 public:
  JobsTask(std::shared_ptr<Group> group, size_t bytes, milliseconds timeout = milliseconds(0))
      : Task(std::move(group), timeout), bytes_(bytes) {}

  void add(std::function<void()> work) { jobs_.emplace_back(std::move(work)); }
  std::string name() const override { return "jobs"; }

  void start(Locked& locked) override {
    left_ = jobs_.size();
    for (FunctionJob& job : jobs_) enqueue(locked, job, bytes_);
  }
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}
  void worked(Locked& locked, Job& job) override {
    job.check();
    if (--left_ == 0) finish(locked);
  }

 private:
  const size_t bytes_;
  std::deque<FunctionJob> jobs_;
  size_t left_ = 0;
};

/// A job whose work another thread does, as a device would.
class DeviceJob final : public Job {
 public:
  DeviceJob(std::shared_ptr<CompletionQueue> queue, std::thread& device, bool is_refused)
      : queue_(std::move(queue)), device_(device), is_refused_(is_refused) {}

 private:
  class Done final : public Completion {
   public:
    Done(std::shared_ptr<CompletionQueue> queue, DeviceJob& job)
        : Completion(std::move(queue)), job_(job) {}

   private:
    void deliver(Locked& locked) override { Runtime::existing()->jobs().completed(locked, job_); }
    DeviceJob& job_;
  };

  void work() override {}
  bool begin() override {
    if (is_refused_) {
      try {
        throw Error(ErrorCode::kTransport, "refused");
      } catch (...) {
        keep_error();
      }
    }
    std::promise<void> begun;
    auto done = std::make_unique<Done>(queue_, *this);
    device_ = std::thread([done = std::move(done), begun = begun.get_future()]() mutable {
      begun.wait();  // once it is complete, the job may be gone
      CompletionQueue::post(std::move(done));
    });
    begun.set_value();
    return false;
  }

  const std::shared_ptr<CompletionQueue> queue_;
  std::thread& device_;
  const bool is_refused_;
};

/// Has one of them, and is over when it has come back.
class DeviceTask final : public Task {
 public:
  DeviceTask(std::shared_ptr<Group> group, std::thread& device, bool is_refused)
      : Task(std::move(group), milliseconds(0)),
        job_(this->group().runtime().completions(), device, is_refused) {}
  std::string name() const override { return "a device's job"; }
  void start(Locked& locked) override { enqueue(locked, job_, kLarge); }
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}
  void worked(Locked& locked, Job& job) override {
    job.check();
    finish(locked);
  }

 private:
  DeviceJob job_;
};

TEST(Jobs, OfADeviceAreCompleteWhenItSaysSo) {
  run_ranks(1, [](Rank& rank) {
    for (const bool is_refused : {false, true}) {
      for (const bool is_waited_for : {false, true}) {
        std::thread device;
        const auto task = std::make_shared<DeviceTask>(
            rank.group(std::to_string(2 * is_refused + is_waited_for)), device, is_refused);
        rank.runtime().submit(task, is_waited_for);
        if (is_waited_for) rank.runtime().wait(*task, TimePoint::max());
        while (!task->done()) std::this_thread::sleep_for(milliseconds(1));
        EXPECT_EQ(task->error().has_value(), is_refused);
        device.join();
      }
    }
  });
}

TEST(Jobs, RunWithoutTheLock) {
  run_ranks(1, [](Rank& rank) {
    const auto task = std::make_shared<JobsTask>(rank.group(), kLarge);
    std::atomic<int> ran{0};
    for (int i = 0; i < 100; ++i) {
      task->add([&] {
        // Another thread gets the lock meanwhile.
        std::thread([&] { const Locked locked(rank.runtime().lock()); }).join();
        ++ran;
      });
    }
    rank.runtime().submit(task, /*caller_waits=*/true);
    EXPECT_TRUE(rank.runtime().wait(*task, TimePoint::max()));
    EXPECT_FALSE(task->error());
    EXPECT_EQ(ran, 100);
  });
}

TEST(Jobs, AreRunByTheDriverWhereNobodyWaits) {
  run_ranks(1, [](Rank& rank) {
    const auto task = std::make_shared<JobsTask>(rank.group(), kLarge);
    std::thread::id who;
    task->add([&] { who = std::this_thread::get_id(); });
    rank.runtime().submit(task, /*caller_waits=*/false);
    while (!task->done()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_NE(who, std::this_thread::get_id());
  });
}

TEST(Jobs, SmallOnesRunInTheCaller) {
  run_ranks(1, [](Rank& rank) {
    const auto group = rank.group();
    bool ran_here = false;
    // The driver may happen to be awake, and faster.
    for (int attempt = 0; attempt < 100 && !ran_here; ++attempt) {
      std::this_thread::sleep_for(milliseconds(30));
      const auto task = std::make_shared<JobsTask>(group, 1);
      task->add([&, caller = std::this_thread::get_id()] {
        ran_here = std::this_thread::get_id() == caller;
      });
      rank.runtime().submit(task, /*caller_waits=*/false);
      while (!task->done()) std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(ran_here);
  });
}

TEST(Jobs, OfAGroupThatNobodyWaitsForRunWhileOthersWait) {
  run_ranks(1, [](Rank& rank) {
    ASSERT_EQ(::setenv("Q7X2_LANES", "1", 1), 0);
    const auto group = rank.group();
    const auto other = rank.group("other");
    const auto never = std::make_shared<JobsTask>(other, kLarge);
    std::atomic<bool> released{false};
    never->add([&] {
      while (!released) std::this_thread::sleep_for(milliseconds(1));
    });
    rank.runtime().submit(never, /*caller_waits=*/true);
    std::thread waiter([&] { rank.runtime().wait(*never, TimePoint::max()); });
    const auto task = std::make_shared<JobsTask>(group, kLarge);
    task->add([] {});
    rank.runtime().submit(task, /*caller_waits=*/false);
    while (!task->done()) std::this_thread::sleep_for(milliseconds(1));
    released = true;
    waiter.join();
    EXPECT_TRUE(never->done());
  });
}

TEST(Jobs, LanesShareThem) {
  run_ranks(1, [](Rank& rank) {
    ASSERT_EQ(::setenv("Q7X2_LANES", "3", 1), 0);
    const auto task = std::make_shared<JobsTask>(rank.group(), kLarge);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    // All four threads must be inside at once for any of them to leave.
    for (int i = 0; i < 4; ++i) {
      task->add([&] {
        const auto give_up = Clock::now() + std::chrono::seconds(20);
        for (;;) {
          {
            const std::lock_guard<std::mutex> lock(mutex);
            threads.insert(std::this_thread::get_id());
            if (threads.size() == 4 || Clock::now() > give_up) return;
          }
          std::this_thread::sleep_for(milliseconds(1));
        }
      });
    }
    rank.runtime().submit(task, /*caller_waits=*/true);
    rank.runtime().wait(*task, TimePoint::max());
    EXPECT_EQ(threads.size(), 4U);
  });
}

TEST(Jobs, AnExceptionFailsTheTaskAndItsGroup) {
  run_ranks(1, [](Rank& rank) {
    const auto group = rank.group();
    const auto task = std::make_shared<JobsTask>(group, kLarge);
    task->add([] { throw std::runtime_error("no such thing"); });
    rank.runtime().submit(task, /*caller_waits=*/true);
    rank.runtime().wait(*task, TimePoint::max());
    ASSERT_TRUE(task->error());
    EXPECT_NE(std::string(task->error()->what()).find("no such thing"), std::string::npos);
    EXPECT_TRUE(group->error());
  });
}

TEST(Jobs, ATaskIsNotDoneWhileOneIsOut) {
  run_ranks(1, [](Rank& rank) {
    ASSERT_EQ(::setenv("Q7X2_LANES", "0", 1), 0);
    const auto group = rank.group();
    const auto task = std::make_shared<JobsTask>(group, kLarge);
    std::atomic<bool> entered{false};
    std::atomic<bool> released{false};
    task->add([&] {
      entered = true;
      while (!released) std::this_thread::sleep_for(milliseconds(1));
    });
    std::atomic<bool> second{false};
    task->add([&] { second = true; });
    rank.runtime().submit(task, /*caller_waits=*/false);
    while (!entered) std::this_thread::sleep_for(milliseconds(1));
    group->abort(Error(ErrorCode::kAborted, "enough"));
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(task->done());
    released = true;
    EXPECT_TRUE(rank.runtime().wait(*task, TimePoint::max()));
    ASSERT_TRUE(task->error());
    EXPECT_EQ(task->error()->code(), ErrorCode::kAborted);
    EXPECT_FALSE(second) << "what has not begun is dropped";
  });
}

TEST(Jobs, LanesFollowTheProcessors) {
  ::unsetenv("Q7X2_LANES");
  EXPECT_EQ(lanes_of_process(8, 1), 7U);
  EXPECT_EQ(lanes_of_process(8, 2), 3U);
  EXPECT_EQ(lanes_of_process(8, 8), 0U);
  EXPECT_EQ(lanes_of_process(2, 32), 0U);
  ::setenv("Q7X2_LANES", "5", 1);
  EXPECT_EQ(lanes_of_process(2, 32), 5U);
  for (const char* wrong : {"", "-1", "many", "2 ", "1025"}) {
    ::setenv("Q7X2_LANES", wrong, 1);
    EXPECT_THROW(lanes_of_process(8, 1), Error) << wrong;
  }
  ::unsetenv("Q7X2_LANES");
}

}  // namespace
}  // namespace q7x2
