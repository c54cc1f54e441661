// Whom a rank tells that its group has failed, and that everybody hears of it.
#include "transport/group/group_failure.h"

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// After how many hops each rank has heard what `first` tells; -1: never. The dead pass nothing on.
std::vector<int> spread(int first, const std::vector<bool>& is_dead) {
  const auto n = static_cast<int>(is_dead.size());
  std::vector<int> hops(is_dead.size(), -1);
  std::vector<int> hearing{first};
  hops[static_cast<size_t>(first)] = 0;
  for (size_t i = 0; i < hearing.size(); ++i) {
    for (const int next : neighbours(hearing[i], n)) {
      auto& hop = hops[static_cast<size_t>(next)];
      if (hop < 0 && !is_dead[static_cast<size_t>(next)]) {
        hop = hops[static_cast<size_t>(hearing[i])] + 1;
        hearing.push_back(next);
      }
    }
  }
  return hops;
}

TEST(Neighbours, InASmallGroupAreAllOthers) {
  for (int n = 1; n <= 16; ++n) {
    for (int rank = 0; rank < n; ++rank) {
      const std::vector<int> ranks = neighbours(rank, n);
      EXPECT_EQ(ranks.size(), static_cast<size_t>(n - 1));
      EXPECT_EQ(std::count(ranks.begin(), ranks.end(), rank), 0);
    }
  }
}

TEST(Neighbours, AreFewAndMutual) {
  for (const int n : {17, 31, 64, 100, 1000, 1024, 4096}) {
    for (const int rank : {0, 1, n / 3, n - 1}) {
      const std::vector<int> ranks = neighbours(rank, n);
      EXPECT_LE(ranks.size(), 2 * static_cast<size_t>(std::bit_width(static_cast<unsigned>(n))));
      EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
      for (const int other : ranks) {
        EXPECT_NE(other, rank);
        const std::vector<int> back = neighbours(other, n);
        EXPECT_TRUE(std::binary_search(back.begin(), back.end(), rank)) << other << " of " << n;
      }
    }
  }
}

TEST(Neighbours, WithoutDeathsEverybodyHearsWithinTheLogarithm) {
  for (const int n : {17, 100, 1024, 4096}) {
    const std::vector<int> hops = spread(n / 2, std::vector<bool>(static_cast<size_t>(n), false));
    EXPECT_GE(*std::min_element(hops.begin(), hops.end()), 0);
    EXPECT_LE(*std::max_element(hops.begin(), hops.end()),
              static_cast<int>(std::bit_width(static_cast<unsigned>(n))));
  }
}

TEST(Neighbours, EverySurvivorOfRandomDeathsHearsOfThem) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const int n : {1024, 4096}) {
    for (const double share : {0.01, 0.1, 0.3}) {
      for (int trial = 0; trial < 5; ++trial) {
        std::vector<bool> is_dead(static_cast<size_t>(n));
        for (size_t r = 0; r < is_dead.size(); ++r) {
          is_dead[r] = std::bernoulli_distribution(share)(random);
        }
        is_dead[0] = false;
        const std::vector<int> hops = spread(0, is_dead);
        for (size_t r = 0; r < hops.size(); ++r) {
          EXPECT_EQ(hops[r] < 0, is_dead[r]) << "rank " << r << " of " << n;
        }
      }
    }
  }
}

TEST(Neighbours, AWholeRackThatDiesCutsNobodyOff) {
  constexpr int kRanks = 1024;
  std::vector<bool> is_dead(kRanks, false);
  std::fill(is_dead.begin() + 256, is_dead.begin() + 768, true);  // half of all, one after another
  const std::vector<int> hops = spread(0, is_dead);
  for (size_t r = 0; r < hops.size(); ++r) {
    EXPECT_EQ(hops[r] < 0, is_dead[r]) << r;
  }
}

TEST(Telling, AbortsFromSeveralThreadsAreOne) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    comm.succeed(*comm.barrier());
    if (rank.rank == 0) {
      const auto task = comm.all_reduce(buffer<int32_t>(10));
      std::vector<std::thread> waiters;
      for (int i = 0; i < 3; ++i) {
        waiters.emplace_back([&] {
          const Error error = comm.failure(*task);
          EXPECT_TRUE(contains(error.what(), "by the user")) << error.what();
        });
      }
      std::vector<std::thread> aborters;
      for (int i = 0; i < 4; ++i) {
        aborters.emplace_back(
            [&] { comm.group().abort(Error(ErrorCode::kAborted, "aborted by the user")); });
      }
      for (std::thread& each : aborters) each.join();
      for (std::thread& each : waiters) each.join();
    } else {
      // It hears of it wherever it is.
      const TimePoint give_up = Clock::now() + test::kPatience;
      while (!comm.group().error() && Clock::now() < give_up) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    comm.group().abort(Error(ErrorCode::kAborted, "again"));
    ASSERT_TRUE(comm.group().error());
    EXPECT_TRUE(contains(comm.group().error()->what(), "by the user")) << "the first error stays";
    rank.barrier();
  });
}

TEST(Telling, ReachesTheEndThatCannotSeeABreak) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("UCX_TLS", "tcp", 1);  // no memory that they share says it either
    Comm comm(rank.group());
    if (rank.rank == 0) {
      Locked locked(rank.runtime().lock());
      rank.runtime().peers().suspect(locked, comm.group().membership().peer(1),
                                     "its connection broke");
    }
    const Error error = comm.failure(*comm.receive(1 - rank.rank, 0, buffer<int32_t>(10)));
    EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
    EXPECT_EQ(error.rank(), 1 - rank.rank);
    rank.barrier();
  });
}

TEST(Telling, ReachesRanksThatNeverTalkedToTheDead) {
  // Virtual hosts: only rank 0 talks to rank 3, and tells the others.
  run_ranks(4,
            [](Rank& rank) {
              ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank).c_str(), 1);
              Comm comm(rank.group());
              if (rank.rank == 0 || rank.rank == 3) {
                const int other = 3 - rank.rank;
                const auto data = buffer<int32_t>(10, rank.rank);
                const auto sent = comm.send(other, 1, data);
                comm.succeed(*comm.receive(other, 1, buffer<int32_t>(10)));
                comm.succeed(*sent);
              }
              rank.barrier();
              if (rank.rank == 3) ::raise(SIGKILL);
              const TimePoint give_up = Clock::now() + test::kPatience;
              while (!comm.group().error() && Clock::now() < give_up) {
                std::this_thread::sleep_for(milliseconds(1));
              }
              ASSERT_TRUE(comm.group().error());
              EXPECT_EQ(comm.group().error()->code(), ErrorCode::kPeerFailed);
              EXPECT_EQ(comm.group().error()->rank(), 3);
            },
            {.killed = {3}});
}

}  // namespace
}  // namespace q7x2
