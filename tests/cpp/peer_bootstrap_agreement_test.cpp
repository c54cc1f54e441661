// All survivors of a bootstrap end alike, whoever dies and when.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "peer_infos_of_ranks.h"
#include "ranks.h"
#include "slowdown.h"
#include "transport/bootstrap/peer_bootstrap.h"

namespace q7x2::test {
namespace {

using std::chrono::microseconds;

constexpr int kRanks = 4;
constexpr std::chrono::milliseconds kPatience{20'000 * kSlowdown};

/// Of the last meeting that failed in this process.
std::string why;

/// Meets the members, and says how that ended: "made", or who failed.
std::string meet(Rank& rank, std::vector<PeerInfo> members, const std::string& uuid,
                 const std::function<void(PeerBootstrap&)>& make = {}) {
  try {
    PeerBootstrap bootstrap(rank.runtime(), {.title = uuid,
                                             .scope = "agreement",
                                             .name = uuid,
                                             .members = std::move(members),
                                             .list = "all",
                                             .timeout = kPatience});
    bootstrap.run(
        [&] {
          bootstrap.exchange("peer_infos", std::string(1000, 'c'), [] {});
          if (make) make(bootstrap);
        },
        [](const Error&) {});
    return "made";
  } catch (const Error& error) {
    why = error.what();
    return to_string(error.code()) + (" " + std::to_string(error.rank()));
  }
}

unsigned seed() {
  const char* const given = std::getenv("Q7X2_RANDOM_SEED");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
}

/// One rank dies after `delay`, while all meet. The others end alike, and then meet without it.
void expect_the_same(int victim, microseconds delay) {
  SCOPED_TRACE("rank " + std::to_string(victim) + " after " + std::to_string(delay.count()) +
               " us");
  run_ranks(kRanks,
            [&](Rank& rank) {
              std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
              meet(rank, peer_infos, "before");  // they are connected
              rank.barrier();
              if (rank.rank == victim) {
                std::thread([delay] {
                  std::this_thread::sleep_for(delay);
                  ::raise(SIGKILL);
                }).detach();
                meet(rank, peer_infos, "with the dead");
                for (;;) ::pause();
              }
              const std::string mine = meet(rank, peer_infos, "with the dead");
              rank.put("outcome", mine);
              for (int other = 0; other < kRanks; ++other) {
                if (other == victim) continue;
                EXPECT_EQ(rank.get(other, "outcome"), mine) << "rank " << other;
              }
              peer_infos.erase(peer_infos.begin() + victim);
              const std::string again = meet(rank, peer_infos, "without it");
              // It was killed in the middle of a message. That ends this runtime; see QueueWatch.
              const bool is_shm_blocked =
                  why.find("messages from other processes") != std::string::npos;
              EXPECT_TRUE(again == "made" || is_shm_blocked) << why;
              rank.put("met", "");
              for (int other = 0; other < kRanks; ++other) {
                if (other != victim) rank.get(other, "met");
              }
            },
            {.killed = {victim}});
}

TEST(Agreement, AllMake) {
  run_ranks(kRanks, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(meet(rank, peer_infos, std::to_string(i)), "made");
    rank.barrier();
  });
}

// The last one could not make its part, when the others have made theirs.
TEST(Agreement, IfOneFailsAllFail) {
  run_ranks(kRanks, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    for (int failing = 0; failing < kRanks; ++failing) {
      const std::string outcome =
          meet(rank, peer_infos, std::to_string(failing), [&](const PeerBootstrap&) {
            if (rank.rank != failing) return;
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            throw Error(ErrorCode::kTransport, "no memory", failing);
          });
      EXPECT_EQ(outcome, to_string(ErrorCode::kTransport) + (" " + std::to_string(failing)));
      rank.barrier();
    }
  });
}

TEST(Agreement, ALeaderThatDiesBeforeItDecidesIsReplaced) {
  run_ranks(kRanks,
            [](Rank& rank) {
              const std::string outcome =
                  meet(rank, cards_of_ranks(rank), "1", [&](const PeerBootstrap&) {
                    if (rank.rank > 0) return;
                    std::this_thread::sleep_for(std::chrono::milliseconds(300));
                    ::raise(SIGKILL);
                  });
              EXPECT_EQ(outcome, to_string(ErrorCode::kPeerFailed) + std::string(" 0"));
              rank.put("outcome", outcome);
              for (int other = 1; other < kRanks; ++other) rank.get(other, "outcome");
            },
            {.killed = {0}});
}

TEST(Agreement, SurvivorsOfADeathAtAnyTimeEndAlike) {
  const unsigned first = seed();
  SCOPED_TRACE("Q7X2_RANDOM_SEED=" + std::to_string(first));
  std::mt19937 random(first);
  std::uniform_int_distribution<int> victim(0, kRanks - 1);
  std::uniform_int_distribution<int> delay(0, 6000);
  for (int i = 0; i < 15 && !::testing::Test::HasFailure(); ++i) {
    expect_the_same(victim(random), microseconds(delay(random) * kSlowdown));
  }
}

}  // namespace
}  // namespace q7x2::test
