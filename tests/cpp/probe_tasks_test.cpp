// The two conversations of a probe, over shared memory and over the network.
#include "executor/probe/probe_tasks.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "ranks.h"

namespace q7x2 {
namespace {

using test::Rank;
using test::run_ranks;

constexpr std::chrono::seconds kTimeout{10};

TEST(PingTask, MeasuresRoundTripsAndOverhead) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    const auto task =
        std::make_shared<PingTask>(group, 1 - rank.rank, Wire::kShared, rank.rank == 0, kTimeout);
    rank.runtime().submit(task, true);
    ASSERT_TRUE(rank.runtime().wait(*task, Clock::now() + kTimeout));
    ASSERT_FALSE(task->error()) << task->error()->what();
    if (rank.rank == 0) {
      EXPECT_GT(task->round_trip(), 0);
      EXPECT_GE(task->overhead(), 0);
    }
  });
}

TEST(StreamTask, MeasuresBothDirections) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    const auto task = std::make_shared<StreamTask>(group, 1 - rank.rank, Wire::kShared, 0.1,
                                                   StreamTask::Far{}, kTimeout);
    rank.runtime().submit(task, true);
    ASSERT_TRUE(rank.runtime().wait(*task, Clock::now() + kTimeout));
    ASSERT_FALSE(task->error()) << task->error()->what();
    EXPECT_GT(task->arrivals().steady_rate(), 0);
    EXPECT_GT(task->acknowledgements().whole_rate(), 0);
    rank.barrier();
  });
}

// Long messages may arrive after an empty one that was sent later.
TEST(StreamTask, LeavesNoMessageToTheNextOne) {
  run_ranks(3, [](Rank& rank) {
    ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    ::setenv("UCX_RNDV_THRESH", "16k", 1);  // then UCX asks before it sends
    const auto group = rank.group();
    for (int i = 0; i < 20; ++i) {
      for (const int idle : {0, 1, 2}) {
        if (idle == rank.rank) continue;
        const int peer = 3 - idle - rank.rank;
        const auto task = std::make_shared<StreamTask>(group, peer, Wire::kShared, 0.01,
                                                       StreamTask::Far{}, kTimeout);
        rank.runtime().submit(task, true);
        ASSERT_TRUE(rank.runtime().wait(*task, Clock::now() + kTimeout));
        ASSERT_FALSE(task->error()) << i << ": " << task->error()->what();
      }
    }
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2
