// Processes that know each other's handles agree without a store.
#include "transport/bootstrap/assembly.h"

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

#include "peer_infos_of_ranks.h"
#include "ranks.h"
#include "slowdown.h"
#include "transport/bootstrap/published.h"

namespace q7x2::test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{15'000 * kSlowdown};
const auto kNoCheck = [] {};

Assembly::Options options(std::vector<PeerInfo> members, const std::string& uuid,
                          milliseconds timeout = kPatience) {
  std::string list = "a list of " + std::to_string(members.size());
  return {.title = "assembly '" + uuid + "'",
          .scope = "test",
          .uuid = uuid,
          .members = std::move(members),
          .list = std::move(list),
          .timeout = timeout};
}

/// What `body` fails with, after telling the others.
Error failure(Assembly& assembly, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    assembly.fail(error);
    return error;
  }
  throw std::runtime_error("succeeded, expected an error");
}

std::string piece(int rank, size_t bytes) {
  std::mt19937 random(static_cast<uint32_t>(rank));
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// ------------------------------------------------------------------------------------- exchange

TEST(Assembly, ExchangesPiecesOfAnyLength) {
  run_ranks(5, [](Rank& rank) {
    Assembly assembly(rank.runtime(), options(cards_of_ranks(rank), "1"));
    EXPECT_EQ(assembly.rank(), rank.rank);
    for (const size_t bytes : {size_t{0}, size_t{100}, size_t{20'000}, size_t{3} << 20}) {
      const std::string what = "x" + std::to_string(bytes);
      const auto all = assembly.exchange(what, piece(rank.rank, bytes), kNoCheck);
      for (int r = 0; r < rank.world_size; ++r) {
        EXPECT_TRUE(all[static_cast<size_t>(r)] == piece(r, bytes)) << what << " of rank " << r;
      }
    }
    assembly.finish();
    rank.barrier();
  });
}

TEST(Assembly, OneProcessNeedsNobody) {
  run_ranks(1, [](Rank& rank) {
    Assembly assembly(rank.runtime(), options(cards_of_ranks(rank), "1"));
    EXPECT_EQ(assembly.exchange("x", "mine", kNoCheck), std::vector<std::string>{"mine"});
    assembly.finish();
  });
}

TEST(Assembly, MembersMayComeLateAndMakeAGroup) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank == 2) std::this_thread::sleep_for(milliseconds(1500));
    Assembly assembly(rank.runtime(), options(peer_infos, "late"));
    const std::shared_ptr<Group> group = make_group(
        rank.runtime(), assembly.rank(), assembly.size(), "late",
        [&](const auto& what, const auto& mine, const auto& check, const auto& prepare) {
          return assembly.exchange(what, mine, check, prepare);
        },
        [&](const auto& missing, const auto& check) { assembly.wait_for(missing, check); }, false);
    assembly.exchange("done", "", kNoCheck);
    assembly.finish();
    EXPECT_EQ(group->world_size(), 4);
    EXPECT_FALSE(group->error());
    rank.barrier();
  });
}

TEST(Assembly, ABrokenConnectionIsOpenedAgain) {
  run_ranks(3, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    const auto group = rank.group("old", {}, /*eager=*/true);
    rank.barrier();
    if (rank.rank != 1) {
      Locked locked(rank.runtime().lock());
      rank.runtime().peers().suspect(locked, group->membership().peer(1), "a test broke it");
    }
    rank.barrier();
    Assembly assembly(rank.runtime(), options(peer_infos, "again"));
    const auto all = assembly.exchange("x", std::to_string(rank.rank), kNoCheck);
    EXPECT_EQ(all, (std::vector<std::string>{"0", "1", "2"}));
    assembly.exchange("done", "", kNoCheck);
    assembly.finish();
    rank.barrier();
  });
}

TEST(Assembly, AnAnswerOnItsWayIsNotSentAgainForEachQuestion) {
  run_ranks(2, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank == 0) {
      Assembly assembly(rank.runtime(), options(peer_infos, "1"));
      const auto all = assembly.exchange("x", std::string(1000, 'a'), kNoCheck);
      EXPECT_EQ(all[1], "mine");
      assembly.finish();
      rank.barrier();
      return;
    }
    AssemblyTable& table = rank.runtime().assemblies();
    AssemblyInbox inbox;
    AssemblyMessage own;
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
        for (const AssemblyMessage& message : inbox.take()) {
          if (++messages == 1) end = Clock::now() + milliseconds(300);
          own = message;
        }
        inbox.wait(milliseconds(1));
      }
      return messages;
    };
    EXPECT_GE(count(), 1U);
    const auto send = [&](AssemblyKind kind) {
      own.kind = kind;
      own.process = rank.runtime().process();
      own.peer_info = peer_infos[1].encode();
      Locked locked(rank.runtime().lock());
      EXPECT_TRUE(table.send(locked, peer_infos[0], own.encode()));
    };
    const TimePoint began = Clock::now();
    for (int i = 0; i < 30; ++i) send(AssemblyKind::kAsk);
    const size_t answers = count();
    size_t most = 1;
    auto pause = AssemblyTable::kPause;
    for (auto next = began + pause; next < Clock::now(); next += pause *= 2) ++most;
    EXPECT_LE(answers, most);
    const Seat seat{1, 2, "assembly '1'", own.key};
    own.body = pack_pieces({publish(rank.runtime().secret(), "x", seat, "mine")});
    send(AssemblyKind::kPieces);
    rank.barrier();
    Locked locked(rank.runtime().lock());
    table.end(locked, {}, own, std::nullopt);
  });
}

// -------------------------------------------------------------------------------------- failures

TEST(Assembly, ADeadlineNamesWhoDidNotCome) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    if (rank.rank != 2) {
      Assembly assembly(rank.runtime(), options(peer_infos, "1", milliseconds(2000)));
      const Error error = failure(assembly, [&] { assembly.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
      EXPECT_EQ(error.rank(), 2) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 2 (pid "), std::string::npos) << error.what();
    }
    rank.barrier();
    if (rank.rank == 2) {  // who comes too late is told
      Assembly assembly(rank.runtime(), options(peer_infos, "1"));
      const Error error = failure(assembly, [&] { assembly.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    }
    rank.barrier();
    Assembly assembly(rank.runtime(), options(peer_infos, "2"));
    assembly.exchange("x", "", kNoCheck);
    assembly.finish();
    rank.barrier();
  });
}

TEST(Assembly, AMemberThatDiesFailsItAtOnce) {
  run_ranks(3,
            [](Rank& rank) {
              const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
              rank.barrier();
              if (rank.rank == 1) {
                std::this_thread::sleep_for(milliseconds(300));
                ::raise(SIGKILL);
              }
              const TimePoint began = Clock::now();
              Assembly assembly(rank.runtime(), options(peer_infos, "1", std::chrono::minutes(5)));
              const Error error = failure(assembly, [&] { assembly.exchange("x", "", kNoCheck); });
              EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
              EXPECT_EQ(error.rank(), 1) << error.what();
              EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
              // So does one that was dead before.
              Assembly again(rank.runtime(), options(peer_infos, "2", std::chrono::minutes(5)));
              EXPECT_EQ(failure(again, [&] { again.exchange("x", "", kNoCheck); }).code(),
                        ErrorCode::kPeerFailed);
              Assembly survivors(rank.runtime(), options({peer_infos[0], peer_infos[2]}, "3"));
              survivors.exchange("x", "", kNoCheck);
              survivors.finish();
            },
            {.killed = {1}});
}

TEST(Assembly, DifferentListsFailEverywhere) {
  run_ranks(4, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    // Ranks 0 and 1 leave out rank 3, rank 2 leaves out rank 1 as well.
    if (rank.rank < 3) {
      const std::vector<PeerInfo> members =
          rank.rank < 2 ? std::vector<PeerInfo>{peer_infos[0], peer_infos[1], peer_infos[2]}
                        : std::vector<PeerInfo>{peer_infos[0], peer_infos[2]};
      Assembly assembly(rank.runtime(), options(members, "1"));
      const Error error = failure(assembly, [&] { assembly.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
      const std::string text = error.what();
      EXPECT_NE(text.find("a list of 2"), std::string::npos) << text;
      EXPECT_NE(text.find("a list of 3"), std::string::npos) << text;
      EXPECT_NE(text.find("pid " + std::to_string(rank.pid_of(2))), std::string::npos) << text;
    }
    rank.barrier();
  });
}

TEST(Assembly, WhatARankTellsTheOthersRaise) {
  run_ranks(4, [](Rank& rank) {
    Assembly assembly(rank.runtime(), options(cards_of_ranks(rank), "1"));
    if (rank.rank == 3) {
      assembly.fail(Error(ErrorCode::kTransport, "rank 3 has no memory", 3));
    } else {
      const Error error = failure(assembly, [&] { assembly.exchange("x", "", kNoCheck); });
      EXPECT_EQ(error.code(), ErrorCode::kTransport);
      EXPECT_STREQ(error.what(), "rank 3 has no memory");
      EXPECT_EQ(error.rank(), 3);
    }
    rank.barrier();
  });
}

// ---------------------------------------------------------------------------------- uuids, lists

TEST(Assembly, AUsedUuidIsRefused) {
  run_ranks(3, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    const auto refused = [&](std::vector<PeerInfo> members) {
      try {
        Assembly assembly(rank.runtime(), options(std::move(members), "1"));
        const Error error = failure(assembly, [&] { assembly.exchange("x", "", kNoCheck); });
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
      }
    };
    if (rank.rank < 2) {
      Assembly assembly(rank.runtime(), options({peer_infos[0], peer_infos[1]}, "1"));
      assembly.exchange("x", "", kNoCheck);
      assembly.finish();
    }
    rank.barrier();
    // Rank 2 has not used it and learns it from another member, those who have know it themselves.
    EXPECT_NE(refused(peer_infos).find("was already used"), std::string::npos);
    rank.barrier();
  });
}

TEST(Assembly, RefusesListsThatCannotBe) {
  run_ranks(2, [](Rank& rank) {
    const std::vector<PeerInfo> peer_infos = cards_of_ranks(rank);
    const auto refusal = [&](std::vector<PeerInfo> members) {
      try {
        Assembly assembly(rank.runtime(), options(std::move(members), "1"));
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
    Assembly assembly(rank.runtime(), options(peer_infos, "1"));  // the uuid was not used by these
    assembly.exchange("x", "", kNoCheck);
    assembly.finish();
    rank.barrier();
  });
}

}  // namespace
}  // namespace q7x2::test
