// New groups of a job among peers: names that come again, and who is missing.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "peer_bootstrap_case.h"
#include "peer_infos_of_ranks.h"
#include "ranks.h"

namespace q7x2::test {
namespace {

using std::chrono::milliseconds;

TEST(PeerBootstrap, ANameMayComeAgain) {
  run_ranks(3, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    for (int time = 0; time < 20; ++time) {
      PeerBootstrap bootstrap(rank.runtime(), repeatable(peer_infos));
      const std::string what = std::to_string(time) + " of ";
      const auto all = bootstrap.meet(what + std::to_string(rank.rank), {}).all;
      EXPECT_EQ(all, (std::vector{what + "0", what + "1", what + "2"}));
      bootstrap.finish(kNoCheck);
    }
    rank.barrier();
  });
}

/// Who comes when the others have given up, and try again, meets them in that attempt.
TEST(PeerBootstrap, WhoComesLateMeetsThoseWhoTryAgain) {
  run_ranks(3, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    for (int attempt = 0; attempt < 3; ++attempt) {
      rank.barrier();  // those who try begin together
      if (rank.rank == 1) continue;
      PeerBootstrap bootstrap(rank.runtime(), repeatable(peer_infos, milliseconds(300)));
      EXPECT_EQ(failure(bootstrap, [&] { bootstrap.meet("", {}); }).code(), ErrorCode::kTimeout);
    }
    rank.barrier();
    if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(200));
    PeerBootstrap bootstrap(rank.runtime(), repeatable(peer_infos));
    const auto all = bootstrap.meet(std::to_string(rank.rank), {}).all;
    EXPECT_EQ(all, (std::vector<std::string>{"0", "1", "2"}));
    bootstrap.finish(kNoCheck);
    rank.barrier();
  });
}

/// Rank 1 does not hear that rank 0 gives up the first attempt.
TEST(PeerBootstrap, WhoTriesAgainTakesAlongWhoStillWaits) {
  run_ranks(2, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank == 0) {
      BootstrapInbox inbox;
      BootstrapMessage given_up;
      given_up.key = "test\na name";
      given_up.kind = BootstrapKind::kFailure;
      Locked locked(rank.runtime().lock());
      ASSERT_TRUE(rank.runtime().bootstraps().begin_next(locked, given_up, inbox));
      rank.runtime().bootstraps().end(locked, {}, given_up, std::nullopt);
    }
    if (rank.rank == 0) rank.get(1, "waits");
    PeerBootstrap bootstrap(rank.runtime(), repeatable(peer_infos));
    if (rank.rank == 1) rank.put("waits", "");
    const auto all = bootstrap.meet(std::to_string(rank.rank), {}).all;
    EXPECT_EQ(all, (std::vector<std::string>{"0", "1"}));
    bootstrap.finish(kNoCheck);
    rank.barrier();
  });
}

/// Deaths of members that a rank does not exchange with.
TEST(PeerBootstrap, AMonitorKnowsOfDeathsOfAll) {
  class Deaths final : public MemberMonitor {
   public:
    void watch(int, const std::string&, const std::string&, bool) override {}
    void forget() override {}
    std::vector<Loss> losses() override {
      return {{3, "rank 3 failed: its process has ended", true}};
    }
    void ask(const std::vector<int>&) override {}
    std::string late_behind(int) override { return ""; }
  };
  run_ranks(2, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank == 0) {
      Deaths deaths;
      PeerBootstrap::Options watched = repeatable(peer_infos);
      watched.monitor = &deaths;
      PeerBootstrap bootstrap(rank.runtime(), watched);
      const Error error = failure(bootstrap, [&] { bootstrap.meet("", {}); });
      EXPECT_EQ(error.code(), ErrorCode::kPeerFailed);
      EXPECT_EQ(error.rank(), 3);
    }
    rank.barrier();
  });
}

TEST(PeerBootstrap, AllWhoAreMissingAreNamed) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank % 2 == 0) {
      PeerBootstrap::Options known = repeatable(peer_infos, milliseconds(500));
      known.missing = [] { return std::vector{1, 3}; };
      PeerBootstrap bootstrap(rank.runtime(), known);
      const Error error = failure(bootstrap, [&] { bootstrap.meet("", {}); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_NE(
          std::string(error.what()).find("ranks 1, 3 did not join within the timeout of 500 ms"),
          std::string::npos)
          << error.what();
    }
    rank.barrier();
  });
}

// ---------------------------------------------------------------------------------- uuids, lists

}  // namespace
}  // namespace q7x2::test
