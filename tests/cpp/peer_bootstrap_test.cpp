// Processes that know each other's handles agree without a store.
#include "transport/bootstrap/peer_bootstrap.h"

#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "peer_bootstrap_case.h"
#include "peer_infos_of_ranks.h"
#include "ranks.h"
#include "transport/bootstrap/published.h"

namespace q7x2::test {
namespace {

using std::chrono::milliseconds;

std::string piece(int rank, size_t bytes) {
  std::mt19937 random(static_cast<uint32_t>(rank));
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// ------------------------------------------------------------------------------------- exchange

TEST(PeerBootstrap, ExchangesPiecesOfAnyLength) {
  run_ranks(5, [](Rank& rank) {
    PeerBootstrap bootstrap(rank.runtime(), options(cards_of_ranks(rank), "1"));
    EXPECT_EQ(bootstrap.rank(), rank.rank);
    for (const size_t bytes : {size_t{0}, size_t{100}, size_t{20'000}, size_t{3} << 20}) {
      const std::string what = "x" + std::to_string(bytes);
      const auto all = bootstrap.exchange(what, piece(rank.rank, bytes), kNoCheck);
      for (int r = 0; r < rank.world_size; ++r) {
        EXPECT_TRUE(all[static_cast<size_t>(r)] == piece(r, bytes)) << what << " of rank " << r;
      }
    }
    bootstrap.finish(kNoCheck);
    rank.barrier();
  });
}

TEST(PeerBootstrap, OneProcessNeedsNobody) {
  run_ranks(1, [](Rank& rank) {
    PeerBootstrap bootstrap(rank.runtime(), options(cards_of_ranks(rank), "1"));
    EXPECT_EQ(bootstrap.exchange("x", "mine", kNoCheck), std::vector<std::string>{"mine"});
    bootstrap.finish(kNoCheck);
  });
}

TEST(PeerBootstrap, MembersMayComeLateAndMakeAGroup) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank == 2) std::this_thread::sleep_for(milliseconds(1500));
    PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "late"));
    const std::shared_ptr<Group> group =
        make_group(rank.runtime(), bootstrap.rank(), bootstrap.size(), "late", bootstrap);
    bootstrap.exchange("done", "", kNoCheck);
    bootstrap.finish(kNoCheck);
    EXPECT_EQ(group->world_size(), 4);
    EXPECT_FALSE(group->error());
    rank.barrier();
  });
}

TEST(PeerBootstrap, ABrokenConnectionIsOpenedAgain) {
  run_ranks(3, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    const auto group = rank.group("old", {}, /*eager=*/true);
    rank.barrier();
    if (rank.rank != 1) {
      Locked locked(rank.runtime().lock());
      rank.runtime().peers().suspect(locked, group->membership().peer(1), "a test broke it");
    }
    rank.barrier();
    PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "again"));
    const auto all = bootstrap.exchange("x", std::to_string(rank.rank), kNoCheck);
    EXPECT_EQ(all, (std::vector<std::string>{"0", "1", "2"}));
    bootstrap.exchange("done", "", kNoCheck);
    bootstrap.finish(kNoCheck);
    rank.barrier();
  });
}

TEST(PeerBootstrap, AnAnswerOnItsWayIsNotSentAgainForEachQuestion) {
  run_ranks(2, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank == 0) {
      PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "1"));
      const auto all = bootstrap.exchange("x", std::string(1000, 'a'), kNoCheck);
      EXPECT_EQ(all[1], "mine");
      bootstrap.finish(kNoCheck);
      rank.barrier();
      return;
    }
    BootstrapTable& table = rank.runtime().bootstraps();
    BootstrapInbox inbox;
    BootstrapMessage own;
    own.key = "test\n1";
    {
      Locked locked(rank.runtime().lock());
      ASSERT_TRUE(table.begin(locked, own, inbox));
    }
    // How many messages have come when one has, and for 300 ms after it.
    const auto count = [&] {
      size_t messages = 0;
      for (auto end = TimePoint::max(); Clock::now() < end;) {
        rank.runtime().drive();
        for (const BootstrapMessage& message : inbox.take()) {
          if (++messages == 1) end = Clock::now() + milliseconds(300);
          own = message;
        }
        inbox.wait(milliseconds(1));
      }
      return messages;
    };
    EXPECT_GE(count(), 1U);
    const auto send = [&](BootstrapKind kind) {
      own.kind = kind;
      own.process = rank.runtime().process();
      own.peer_info = peer_infos[1].encode();
      Locked locked(rank.runtime().lock());
      EXPECT_TRUE(table.send(locked, peer_infos[0], own.encode()));
    };
    const TimePoint began = Clock::now();
    for (int i = 0; i < 30; ++i) send(BootstrapKind::kAsk);
    const size_t answers = count();
    size_t most = 1;
    auto pause = BootstrapTable::kPause;
    for (auto next = began + pause; next < Clock::now(); next += pause *= 2) ++most;
    EXPECT_LE(answers, most);
    const Seat seat{1, 2, "1", own.key + "\n0"};
    own.body = pack_pieces({publish(rank.runtime().secret(), "x", seat, "mine")});
    send(BootstrapKind::kPieces);
    rank.barrier();
    Locked locked(rank.runtime().lock());
    table.end(locked, {}, own, std::nullopt);
  });
}

// -------------------------------------------------------------------------------------- failures

TEST(PeerBootstrap, ADeadlineNamesWhoDidNotCome) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank != 2) {
      PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "1", milliseconds(2000)));
      const Error error = failure(bootstrap, [&] { bootstrap.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
      EXPECT_EQ(error.rank(), 2) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 2 (pid "), std::string::npos) << error.what();
    }
    rank.barrier();
    if (rank.rank == 2) {  // who comes too late is told
      PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "1"));
      const Error error = failure(bootstrap, [&] { bootstrap.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    }
    rank.barrier();
    PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "2"));
    bootstrap.exchange("x", "", kNoCheck);
    bootstrap.finish(kNoCheck);
    rank.barrier();
  });
}

TEST(PeerBootstrap, AMemberThatDiesFailsItAtOnce) {
  run_ranks(
      3,
      [](Rank& rank) {
        const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
        rank.barrier();
        if (rank.rank == 1) {
          std::this_thread::sleep_for(milliseconds(300));
          ::raise(SIGKILL);
        }
        const TimePoint began = Clock::now();
        PeerBootstrap bootstrap(rank.runtime(), options(peer_infos, "1", std::chrono::minutes(5)));
        const Error error = failure(bootstrap, [&] { bootstrap.exchange("x", "", kNoCheck); });
        EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
        EXPECT_EQ(error.rank(), 1) << error.what();
        EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
        // So does one that was dead before.
        PeerBootstrap again(rank.runtime(), options(peer_infos, "2", std::chrono::minutes(5)));
        EXPECT_EQ(failure(again, [&] { again.exchange("x", "", kNoCheck); }).code(),
                  ErrorCode::kPeerFailed);
        PeerBootstrap survivors(rank.runtime(), options({peer_infos[0], peer_infos[2]}, "3"));
        survivors.exchange("x", "", kNoCheck);
        survivors.finish(kNoCheck);
      },
      {.killed = {1}});
}

TEST(PeerBootstrap, DifferentListsFailEverywhere) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    // Ranks 0 and 1 leave out rank 3, rank 2 leaves out rank 1 as well.
    if (rank.rank < 3) {
      const std::vector<PeerInfo> members =
          rank.rank < 2 ? std::vector<PeerInfo>{peer_infos[0], peer_infos[1], peer_infos[2]}
                        : std::vector<PeerInfo>{peer_infos[0], peer_infos[2]};
      PeerBootstrap bootstrap(rank.runtime(), options(members, "1"));
      const Error error = failure(bootstrap, [&] { bootstrap.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
      const std::string text = error.what();
      EXPECT_NE(text.find("a list of 2"), std::string::npos) << text;
      EXPECT_NE(text.find("a list of 3"), std::string::npos) << text;
      EXPECT_NE(text.find("pid " + std::to_string(rank.pid_of(2))), std::string::npos) << text;
    }
    rank.barrier();
  });
}

TEST(PeerBootstrap, WhatARankTellsTheOthersRaise) {
  run_ranks(4, [](Rank& rank) {
    PeerBootstrap bootstrap(rank.runtime(), options(cards_of_ranks(rank), "1"));
    if (rank.rank == 3) {
      bootstrap.fail(Error(ErrorCode::kTransport, "rank 3 has no memory", 3));
    } else {
      const Error error = failure(bootstrap, [&] { bootstrap.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kTransport);
      EXPECT_STREQ(error.what(), "rank 3 has no memory");
      EXPECT_EQ(error.rank(), 3);
    }
    rank.barrier();
  });
}

TEST(PeerBootstrap, AUsedUuidIsRefused) {
  run_ranks(3, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    const auto refused = [&](std::vector<PeerInfo> members) {
      try {
        PeerBootstrap bootstrap(rank.runtime(), options(std::move(members), "1"));
        const Error error = failure(bootstrap, [&] { bootstrap.exchange("x", "", kNoCheck); });
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
      }
    };
    if (rank.rank < 2) {
      PeerBootstrap bootstrap(rank.runtime(), options({peer_infos[0], peer_infos[1]}, "1"));
      bootstrap.exchange("x", "", kNoCheck);
      bootstrap.finish(kNoCheck);
    }
    rank.barrier();
    // Rank 2 has not used it and learns it from another member, those who have know it themselves.
    EXPECT_NE(refused(peer_infos).find("was already used"), std::string::npos);
    rank.barrier();
  });
}

TEST(PeerBootstrap, RefusesListsThatCannotBe) {
  run_ranks(2, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    const auto refusal = [&](std::vector<PeerInfo> members) {
      try {
        PeerBootstrap bootstrap(rank.runtime(), options(std::move(members), "1"));
        return std::string();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
      }
    };
    const auto other = static_cast<size_t>(1 - rank.rank);
    EXPECT_NE(refusal({}).find("does not name this process"), std::string::npos);
    EXPECT_NE(refusal({peer_infos[other]}).find("does not name this process"), std::string::npos);
    EXPECT_NE(refusal({peer_infos[0], peer_infos[1], peer_infos[0]}).find("twice"),
              std::string::npos);
    rank.barrier();
    PeerBootstrap bootstrap(rank.runtime(),
                            options(peer_infos, "1"));  // the uuid was not used by these
    bootstrap.exchange("x", "", kNoCheck);
    bootstrap.finish(kNoCheck);
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2::test
