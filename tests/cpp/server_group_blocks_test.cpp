// All-reduces of blocks that servers own, between real processes: who adds them up, the bits of the
// sum, and what remains when a server dies.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server_group_job.h"
#include "slot_page.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::kRanks;
using test::Rank;
using test::run_ranks;
using test::SlotPage;
using Job = test::ServerGroupJob;

constexpr size_t kInBlock = BlockRows::kBytes / sizeof(float);
constexpr size_t kCount = 2000 * kInBlock + 5;  // the last block is short

/// What `rank` has: one block in `every`, the same on all ranks or its own.
std::vector<float> numbers(int rank, bool is_own, int every) {
  std::vector<float> values(kCount);
  std::mt19937 random(static_cast<unsigned>(rank));
  for (size_t i = 0; i < kCount; ++i) {
    const auto block = static_cast<int>(i / kInBlock) + (is_own ? rank : 0);
    const float value = static_cast<float>(random() % 1000) / 7.0F - 70.0F;
    if (block % every == 0) values[i] = value;
  }
  return values;
}

Buffer<float> given(int rank, bool is_own, int every) {
  const auto data = buffer<float>(0);
  *data = numbers(rank, is_own, every);
  return data;
}

/// In rank order, bit by bit.
void expect_sums(const std::vector<float>& got, bool is_own, int every) {
  std::vector<float> sums = numbers(0, is_own, every);
  for (int rank = 1; rank < kRanks; ++rank) {
    const std::vector<float> its = numbers(rank, is_own, every);
    for (size_t i = 0; i < kCount; ++i) sums[i] += its[i];
  }
  EXPECT_EQ(std::memcmp(got.data(), sums.data(), kCount * sizeof(float)), 0);
}

void expect_right_sums(Job& job, int calls, bool is_own, int every) {
  for (int call = 0; call < calls; ++call) {
    const auto data = given(job.group().rank(), is_own, every);
    job.comm().succeed(*job.start_blocks(data));
    expect_sums(*data, is_own, every);
  }
}

void on_its_own_host(const Rank& rank) {
  setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
}

TEST(ServerGroupBlocks, ServersAddUpBlocksThatAllRanksHave) {
  run_ranks(kRanks + 2, [](Rank& rank) {
    on_its_own_host(rank);
    Job job(rank);
    if (job.is_server()) {
      EXPECT_EQ(job.serve(), 0U);
      return;
    }
    for (const int every : {1, 4, 4}) {
      expect_right_sums(job, 3, /*is_own=*/false, every);
    }
    EXPECT_EQ(job.servers().served(), 8U);  // all but the first one, of which nothing was known
    EXPECT_EQ(job.servers().declined(), 0U);
    job.servers().group().leave();
  });
}

TEST(ServerGroupBlocks, RanksAddUpBlocksThatOneOfThemHas) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    on_its_own_host(rank);
    Job job(rank);
    if (job.is_server()) {
      EXPECT_EQ(job.serve(), 0U);
      return;
    }
    expect_right_sums(job, 3, /*is_own=*/true, 8);
    EXPECT_EQ(job.servers().served(), 0U);
    // The blocks change, and one call later it is known.
    expect_right_sums(job, 3, /*is_own=*/false, 8);
    EXPECT_EQ(job.servers().served(), 2U);
    job.servers().group().leave();
  });
}

TEST(ServerGroupBlocks, CallsWithoutSlotsAreMadeByTheRanks) {
  run_ranks(kRanks + 1, [](Rank& rank) {
    on_its_own_host(rank);
    Job job(rank);
    if (job.is_server()) {
      EXPECT_EQ(job.serve(SlotPage(1).pool(0, 1'000)), 2U);
      return;
    }
    expect_right_sums(job, 3, /*is_own=*/false, 2);
    EXPECT_EQ(job.servers().served(), 0U);
    EXPECT_EQ(job.servers().declined(), 2U);
    job.servers().group().leave();
  });
}

// The attempt has overwritten some blocks by then, others on each rank.
TEST(ServerGroupBlocks, AServerThatDiesCostsNoResult) {
  const auto seed = static_cast<unsigned>(std::random_device()());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 5; ++trial) {
    const std::chrono::microseconds until(random() % 30'000);
    run_ranks(kRanks + 2,
              [until](Rank& rank) {
                on_its_own_host(rank);
                setenv("UCX_TLS", "^sm", 1);  // as `q7x2 serve` does (python/q7x2/plan/serve.py)
                Job job(rank);
                if (job.is_server()) {
                  std::thread end([&] {
                    std::this_thread::sleep_for(until);
                    if (rank.rank == kRanks) raise(SIGKILL);
                  });
                  try {
                    job.serve();
                  } catch (const Error&) {
                    EXPECT_NE(rank.rank, kRanks);  // of the other server
                  }
                  end.join();
                  return;
                }
                expect_right_sums(job, 8, /*is_own=*/false, 2);
                job.servers().group().leave();
              },
              {.killed = {kRanks}});
  }
}

}  // namespace
}  // namespace q7x2
