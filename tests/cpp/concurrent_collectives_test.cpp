// Collectives that overlap: many of one group, groups with ranks in common, a thread per group.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "process_state.h"
#include "processor_time.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

/// All-reduces of many sizes, started at once and checked at the end.
class Flight {
 public:
  Flight(Comm& comm, int count) : comm_(comm), count_(count) {}

  void start(int i) {
    const size_t length = i % 10 == 0 ? 50'000 : static_cast<size_t>(1 + i * 37 % 2000);
    data_.push_back(buffer<int32_t>(length, 1000 * comm_.rank() + i));
    tasks_.push_back(comm_.all_reduce(data_.back()));
  }

  const CollectiveTask& task(size_t i) const { return *tasks_[i]; }

  void check() {
    for (int i = 0; i < count_; ++i) {
      const auto k = static_cast<size_t>(i);
      comm_.succeed(*tasks_[k]);
      const int32_t expected = comm_.size() * (comm_.size() - 1) / 2 * 1000 + i * comm_.size();
      EXPECT_TRUE(std::all_of(data_[k]->begin(), data_[k]->end(), [&](int32_t x) {
        return x == expected;
      })) << tasks_[k]->name();
    }
  }

 private:
  Comm& comm_;
  const int count_;
  std::vector<Buffer<int32_t>> data_;
  std::vector<std::shared_ptr<CollectiveTask>> tasks_;
};

/// In progress until it is told to end.
class HeldTask final : public Task {
 public:
  explicit HeldTask(std::shared_ptr<Group> group) : Task(std::move(group), test::kLong) {}

  void release() {
    Locked locked(group().runtime().lock());
    finish(locked);
  }
  std::string name() const override { return "held"; }
  bool takes_turn() const override { return true; }
  void start(Locked&) override {}
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}
};

TEST(Concurrency, ManyCollectivesOfOneGroup) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr int kCount = 700;  // more than run at once, and than are remembered
    Flight flight(comm, kCount);
    for (int i = 0; i < kCount; ++i) flight.start(i);
    flight.check();
  });
}

TEST(Concurrency, ALongCallIsPassedByAFixedNumber) {
  run_ranks(2, [](Rank& rank) {
    const std::shared_ptr<Group> group = rank.group();
    Comm comm(group);
    const auto held = std::make_shared<HeldTask>(group);
    group->runtime().submit(held, /*caller_waits=*/false);
    Flight flight(comm, 500);
    for (int i = 0; i < 500; ++i) flight.start(i);
    comm.succeed(flight.task(150));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_FALSE(flight.task(256).done());
    held->release();
    flight.check();
  });
}

TEST(Concurrency, OverlappingGroupsAtOnce) {
  run_ranks(4, [](Rank& rank) {
    constexpr int kCount = 100;
    std::vector<std::unique_ptr<Comm>> comms;
    const std::vector<std::vector<int>> memberships = {{0, 1, 2}, {3, 2, 1}, {0, 1, 2, 3}};
    for (size_t g = 0; g < memberships.size(); ++g) {
      const auto& members = memberships[g];
      if (std::count(members.begin(), members.end(), rank.rank) > 0) {
        comms.push_back(std::make_unique<Comm>(rank.group(std::to_string(g), members)));
      }
    }
    // The order within a group is the same everywhere, between groups it is each rank's own.
    if (rank.rank % 2 == 1) std::reverse(comms.begin(), comms.end());
    std::vector<Flight> flights;
    for (auto& comm : comms) flights.emplace_back(*comm, kCount);
    for (int i = 0; i < kCount; ++i) {
      for (Flight& flight : flights) flight.start(i);
    }
    for (Flight& flight : flights) flight.check();
  });
}

TEST(Concurrency, AThreadForEachGroup) {
  run_ranks(2, [](Rank& rank) {
    std::vector<std::unique_ptr<Comm>> comms;
    for (int g = 0; g < 3; ++g) {
      comms.push_back(std::make_unique<Comm>(rank.group(std::to_string(g))));
    }
    std::vector<std::thread> threads;
    for (auto& comm : comms) {
      threads.emplace_back([&comm] {
        for (int32_t i = 0; i < 200; ++i) {
          const auto data = buffer<int32_t>(static_cast<size_t>(1 + i * 13 % 500), i);
          comm->succeed(*comm->all_reduce(data));
          EXPECT_EQ(data->front(), 2 * i);
          EXPECT_EQ(data->back(), 2 * i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// One that is stopped answers nothing, and is asked only a few times, however many calls wait.
TEST(Concurrency, WaitingForAStoppedRankCostsNoProcessor) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr int kCalls = 64;
    Flight flight(comm, kCalls);
    comm.succeed(*comm.barrier());
    rank.barrier();
    if (rank.rank == 1) {
      // One that is stopped in the middle of a write keeps the reader awake.
      const Locked locked(rank.runtime().lock());
      ::raise(SIGSTOP);
    } else {
      test::await_state(rank.pid_of(1), 'T');
    }
    for (int i = 0; i < kCalls; ++i) flight.start(i);
    if (rank.rank == 0) {
      const double before = test::cpu_seconds();
      const auto begin = Clock::now();
      std::this_thread::sleep_for(std::chrono::seconds(4));
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      EXPECT_LT(test::cpu_seconds() - before, elapsed.count() / 4);
      ::kill(rank.pid_of(1), SIGCONT);
    }
    flight.check();
  });
}

TEST(Concurrency, NobodyNeedsToWait) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(1 << 20, 1);
    const auto task = comm.all_reduce(data);
    const TimePoint give_up = Clock::now() + test::kPatience;
    while (!task->done() && Clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(task->done());
    EXPECT_EQ(data->back(), 2);
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
