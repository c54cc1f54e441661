// Calls that servers have too few slots for, or few.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "server_group_job.h"
#include "slot_page.h"

namespace q7x2 {
namespace {

using test::expect_sums;
using test::kRanks;
using test::numbers;
using test::Rank;
using test::run_ranks;
using test::SlotPage;
using Job = test::ServerGroupJob;

TEST(ServerGroupSlots, CallsWithoutSlotsAreMadeByTheRanks) {
  run_ranks(kRanks + 2, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank, 25e6);
    if (job.is_server()) {
      // The second server has room for short calls only.
      const bool is_second = rank.rank == kRanks + 1;
      EXPECT_EQ(job.serve(is_second ? SlotPage(1).pool(0, 50'000) : SlotPool()),
                is_second ? 10U : 0U);
      return;
    }
    for (int i = 0; i < 10; ++i) {
      for (const size_t count : {1'000, 300'007}) {
        const auto data = numbers(rank.rank, count);
        job.comm().succeed(*job.start(data, -1, test::kLong, "servers:2"));
        expect_sums(*data);
      }
    }
    EXPECT_EQ(job.servers().served(), 10U);
    EXPECT_EQ(job.servers().declined(), 10U);
    for (int root = 0; root < kRanks; ++root) {
      const auto data = numbers(rank.rank, 300'007);
      job.comm().succeed(*job.start(data, root, test::kLong, "servers:1"));
      if (rank.rank == root) {
        expect_sums(*data);
      } else {
        EXPECT_EQ(*data, *numbers(rank.rank, 300'007));
      }
    }
    EXPECT_EQ(job.servers().served(), 10U + kRanks);
    job.servers().group().leave();
  });
}

TEST(ServerGroupSlots, FewSlotsAreEnough) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
    Job job(rank);
    constexpr size_t kCount = 2'000'003;
    if (job.is_server()) {
      // 16 slots would be the whole buffers of all ranks, or more.
      job.serve(SlotPage(1).pool(0, kRanks * kCount * sizeof(float) / 2));
      return;
    }
    for (int i = 0; i < 5; ++i) {
      const auto data = numbers(rank.rank, kCount);
      job.comm().succeed(*job.start(data));
      expect_sums(*data);
    }
    EXPECT_EQ(job.servers().served(), 5U);
    EXPECT_EQ(job.servers().declined(), 0U);
    job.servers().group().leave();
  });
}

}  // namespace
}  // namespace q7x2
