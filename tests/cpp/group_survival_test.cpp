// A collective that fails among live ranks fails alone: the group goes on.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

constexpr int kRanks = 4;
constexpr int kRounds = 100;
constexpr int kSum = 1 + 2 + 3 + 4;
/// How long a rank hears nothing. Much longer than what ranks do that are not slow.
constexpr std::chrono::milliseconds kDeaf{3000 * test::kSlowdown};

/// More elements than the kernel takes of a receiver that does not read.
constexpr size_t kLongCount = 16'000'000;

/// As code of this rank fails that works for `task`.
void break_call(Rank& rank, Comm& comm, Task& task) {
  Locked locked(rank.runtime().lock());
  if (task.is_over(locked)) return;
  const Error error(ErrorCode::kInternal, "it was broken by rank " + std::to_string(rank.rank),
                    rank.rank);
  comm.group().fail_call(locked, task, error);
}

/// Waits for a call that rank 0 has broken. All messages for it may have been on their way.
void await_broken(Comm& comm, const Task& task) {
  comm.await(task);
  const auto& error = task.error();
  EXPECT_TRUE(!error || error->rank() == 0) << error->what();
}

/// By what UCX's transports ranks of a host talk: "": shared memory.
class Survival : public ::testing::TestWithParam<const char*> {};

// In each round several collectives are in progress, and one of them breaks on one rank, at any
// time. It has the same error on all ranks that have not ended it before. The others are right.
TEST_P(Survival, OneThatBreaksOnOneRankFailsAlone) {
  const auto seed = static_cast<uint32_t>(std::random_device{}());
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_ranks(kRanks,
            [seed](Rank& rank) {
              if (*GetParam() != '\0') ::setenv("UCX_TLS", GetParam(), 1);
              Comm comm(rank.group());
              // What agrees on the algorithms of these calls must not be cut short.
              for (const size_t count : {1, 1000, 100'000, 1'000'000}) {
                comm.succeed(*comm.all_reduce(buffer<int32_t>(count)));
              }
              std::mt19937 random(seed);  // all ranks draw the same
              int broken = 0;
              for (int round = 0; round < kRounds; ++round) {
                rank.at("round " + std::to_string(round));
                const int victim = static_cast<int>(random() % kRanks);
                const size_t breaks = random() % 4;
                const microseconds delay(random() % 3000);
                std::vector<test::Buffer<int32_t>> data;
                std::vector<std::shared_ptr<CollectiveTask>> tasks;
                for (size_t i = 0; i < 4; ++i) {
                  const size_t counts[] = {1, 1000, 100'000, 1'000'000};
                  data.push_back(buffer<int32_t>(counts[random() % 4], rank.rank + 1));
                  tasks.push_back(comm.all_reduce(data.back()));
                }
                if (rank.rank == victim) {
                  std::this_thread::sleep_for(delay);
                  break_call(rank, comm, *tasks[breaks]);
                }
                for (size_t i = 0; i < tasks.size(); ++i) {
                  comm.await(*tasks[i]);
                  if (const auto& error = tasks[i]->error()) {
                    ASSERT_EQ(i, breaks) << error->what();
                    EXPECT_EQ(error->code(), ErrorCode::kInternal) << error->what();
                    EXPECT_EQ(error->rank(), victim) << error->what();
                    ++broken;
                  } else {
                    EXPECT_EQ(*data[i], *buffer<int32_t>(data[i]->size(), kSum))
                        << "round " << round;
                  }
                }
              }
              EXPECT_GT(broken, kRounds / 20) << "it shows nothing";
              EXPECT_FALSE(comm.group().error()) << comm.group().error()->what();
              rank.barrier();
            },
            {.killed = {}, .deadline = std::chrono::seconds(240)});
}

INSTANTIATE_TEST_SUITE_P(Transports, Survival, ::testing::Values("", "tcp,self"),
                         [](const auto& each) {
                           return *each.param == '\0' ? "shared_memory" : "network";
                         });

// It may come much later: it learns why the call fails as soon as it makes it.
TEST(GroupSurvival, ARankThatComesLaterHasTheSameError) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    const auto data = buffer<int32_t>(100'000, 1);
    if (rank.rank != 1) {
      const auto task = comm.all_reduce(data);
      if (rank.rank == 0) break_call(rank, comm, *task);
      EXPECT_EQ(comm.failure(*task).rank(), 0);
    }
    rank.barrier();
    if (rank.rank == 1) {
      const Error error = comm.failure(*comm.all_reduce(data));
      EXPECT_EQ(error.rank(), 0);
      EXPECT_NE(std::string(error.what()).find("it was broken by rank 0"), std::string::npos);
    }
    const auto next = buffer<int32_t>(100'000, 1);
    comm.succeed(*comm.all_reduce(next));
    EXPECT_EQ(*next, *buffer<int32_t>(100'000, 3));
    EXPECT_FALSE(comm.group().error());
    rank.barrier();
  });
}

// No rank waits for one that has not heard of the failure yet, for however long.
TEST(GroupSurvival, NobodyWaitsForARankThatDoesNotHear) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    rank.barrier();
    if (rank.rank == 1) {
      Locked locked(rank.runtime().lock());  // nothing that arrives is heard
      rank.get(0, "went on");
    } else {
      const int other = 2 - rank.rank;
      const auto task = comm.all_reduce(buffer<int32_t>(10));
      if (rank.rank == 0) break_call(rank, comm, *task);
      EXPECT_EQ(comm.failure(*task).rank(), 0);
      constexpr std::chrono::milliseconds kPause{100};
      for (int i = 0; i < kDeaf / kPause; ++i) {
        const auto received = buffer<int32_t>(100'000);
        const auto message = comm.receive(other, 0, received);
        comm.succeed(*comm.send(other, 0, buffer<int32_t>(100'000, i)));
        comm.succeed(*message);
        EXPECT_EQ(*received, *buffer<int32_t>(100'000, i));
        std::this_thread::sleep_for(kPause);
      }
      EXPECT_FALSE(comm.group().error()) << comm.group().error()->what();
      rank.put("went on", "");
    }
    rank.barrier();
    if (rank.rank == 1) await_broken(comm, *comm.all_reduce(buffer<int32_t>(10)));
    const auto next = buffer<int32_t>(100'000, 1);
    comm.succeed(*comm.all_reduce(next));
    EXPECT_EQ(*next, *buffer<int32_t>(100'000, 3));
    rank.barrier();
  });
}

/// Rank 0 fails a broadcast that rank 1 is to read from its memory.
std::shared_ptr<CollectiveTask> break_broadcast(Rank& rank, Comm& comm,
                                                std::chrono::milliseconds timeout) {
  const auto task =
      comm.flat(Collective::kBroadcast, buffer<int32_t>(kLongCount, 1), DType::kInt32, timeout, 0);
  break_call(rank, comm, *task);
  return task;
}

// It may still be read from, so the call is not done before.
TEST(GroupSurvival, ACallKeepsItsMemoryUntilItsPeersHaveHeard) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("UCX_TLS", "tcp,self", 1);
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(kLongCount, rank.rank);
    comm.succeed(*comm.flat(Collective::kBroadcast, data, DType::kInt32, test::kLong, 1));
    comm.succeed(*comm.flat(Collective::kBroadcast, data, DType::kInt32, test::kLong, 0));
    rank.barrier();
    if (rank.rank == 1) {
      Locked locked(rank.runtime().lock());
      rank.get(0, "waited");
    } else {
      const auto task = break_broadcast(rank, comm, test::kLong);
      std::this_thread::sleep_for(kDeaf);
      EXPECT_FALSE(task->done());
      rank.put("waited", "");
      EXPECT_EQ(comm.failure(*task).rank(), 0);
      EXPECT_FALSE(comm.group().error()) << comm.group().error()->what();
    }
    if (rank.rank == 1) {
      await_broken(comm, *comm.flat(Collective::kBroadcast, data, DType::kInt32, test::kLong, 0));
    }
    comm.succeed(*comm.barrier());
    rank.barrier();
  });
}

TEST(GroupSurvival, ARankThatHasNotHeardAtTheDeadlineIsLate) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("UCX_TLS", "tcp,self", 1);
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(kLongCount, rank.rank);
    comm.succeed(*comm.flat(Collective::kBroadcast, data, DType::kInt32, test::kLong, 0));
    rank.barrier();
    if (rank.rank == 1) {
      Locked locked(rank.runtime().lock());
      rank.get(0, "ended");
    } else {
      const auto task = break_broadcast(rank, comm, kDeaf);
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kInternal) << "the failure came first";
      EXPECT_GE(task->finished(), task->submitted() + kDeaf);
      ASSERT_TRUE(comm.group().error());
      EXPECT_EQ(comm.group().error()->code(), ErrorCode::kTimeout);
      EXPECT_EQ(comm.group().error()->rank(), 1);
      rank.put("ended", "");
    }
    rank.barrier();
  });
}

// Each has its own reason, and both are right.
TEST(GroupSurvival, TwoRanksMayFailOneCallAndTwoCallsAtOnce) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    const auto warm = buffer<int32_t>(1000);
    comm.succeed(*comm.all_reduce(warm));
    for (int round = 0; round < 20; ++round) {
      rank.at("round " + std::to_string(round));
      const auto both = comm.all_reduce(buffer<int32_t>(1000));
      const auto one = comm.all_reduce(buffer<int32_t>(1000));
      const auto none = buffer<int32_t>(1000, 1);
      const auto good = comm.all_reduce(none);
      rank.barrier();
      if (rank.rank < 2) break_call(rank, comm, *both);
      if (rank.rank == 1) break_call(rank, comm, *one);
      comm.await(*both);
      comm.await(*one);
      comm.succeed(*good);
      if (const auto& error = both->error(); error && rank.rank < 2) {
        EXPECT_TRUE(error->rank() == 0 || error->rank() == 1) << error->what();
      }
      EXPECT_EQ(*none, *buffer<int32_t>(1000, 3)) << "round " << round;
    }
    EXPECT_FALSE(comm.group().error()) << comm.group().error()->what();
    rank.barrier();
  });
}

// Of what a rank has begun and not ended, the others hear at once when it leaves. What they do
// without it goes on.
TEST(GroupSurvival, ARankThatLeavesEndsOnlyWhatItHasNotEnded) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    rank.barrier();
    if (rank.rank == 1) {
      const auto task = comm.all_reduce(buffer<int32_t>(10));
      comm.group().leave();
      EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kAborted);
      rank.put("left", "");
    } else {
      const int other = 2 - rank.rank;
      const auto received = buffer<int32_t>(10);
      const auto message = comm.receive(other, 0, received);
      rank.get(1, "left");
      // One that it had begun, and others, for which an algorithm would have to be agreed on.
      for (const size_t count : {10, 10, 10'000, 1'000'000}) {
        const Error error = comm.failure(*comm.all_reduce(buffer<int32_t>(count)));
        EXPECT_EQ(error.code(), ErrorCode::kPeerLeft) << error.what();
        EXPECT_EQ(error.rank(), 1) << error.what();
      }
      comm.succeed(*comm.send(other, 0, buffer<int32_t>(10, 7)));
      comm.succeed(*message);
      EXPECT_EQ(*received, *buffer<int32_t>(10, 7));
      EXPECT_FALSE(comm.group().error());
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
