// A StoreBootstrap over a store that outlives the ranks. Ranks are threads.
#include "transport/bootstrap/store_bootstrap.h"

#include <chrono>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "shared_store.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::Client;
using test::Killed;
using test::options_of;
using test::SharedStore;

constexpr int kMembers = 6;

/// A process that is, or wants to be, a rank of the group.
class Process {
 public:
  Process(SharedStore& store, int rank, int size, std::string peer_info, int dies_at = -1,
          uint32_t seed = 0)
      : client(store, dies_at, seed), thread_([this, rank, size, peer_info = std::move(peer_info)] {
          run(rank, size, peer_info);
        }) {}
  ~Process() { join(); }

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // After `join`.
  std::vector<std::string> peer_infos;  ///< empty where it failed
  std::vector<std::string> later;       ///< of a second exchange
  std::optional<Error> error;
  Client client;

 private:
  void run(int rank, int size, const std::string& peer_info) {
    StoreBootstrap bootstrap(client, options_of(rank, size));
    try {
      auto found = bootstrap.meet(peer_info, {}).all;
      later = bootstrap.exchange("later", "later " + peer_info, [] {});
      bootstrap.finish([] {});
      peer_infos = std::move(found);
    } catch (const Error& e) {
      error = e;
      bootstrap.fail(e);
      bootstrap.stay([] {});
    } catch (const Killed&) {
    }
  }

  std::thread thread_;
};

using OffloadAttempt = std::vector<std::unique_ptr<Process>>;

OffloadAttempt start(SharedStore& store, int attempt, int size, uint32_t seed, int victim = -1,
                     int dies_at = -1) {
  OffloadAttempt ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<Process>(
        store, r, size, std::to_string(attempt) + "/" + std::to_string(r),
        r == victim ? dies_at : -1, seed * 131 + static_cast<uint32_t>(r)));
  }
  return ranks;
}

/// What the launcher does when one of its ranks has died.
void kill_all(OffloadAttempt& ranks) {
  for (auto& rank : ranks) rank->client.kill();
  for (auto& rank : ranks) rank->join();
}

void expect_complete(OffloadAttempt& ranks, int attempt) {
  std::vector<std::string> expected;
  std::vector<std::string> later;
  for (size_t r = 0; r < ranks.size(); ++r) {
    expected.push_back(std::to_string(attempt) + "/" + std::to_string(r));
    later.push_back("later " + expected.back());
  }
  for (auto& rank : ranks) {
    rank->join();
    EXPECT_FALSE(rank->error) << rank->error->what();
    EXPECT_EQ(rank->peer_infos, expected);
    EXPECT_EQ(rank->later, later);
  }
}

TEST(StoreBootstrap, AllFindEachOther) {
  for (const int size : {1, 2, 3, 8}) {
    SharedStore store;
    OffloadAttempt ranks = start(store, 0, size, static_cast<uint32_t>(size));
    expect_complete(ranks, 0);
  }
}

/// Rank 1 is late twice, each time by less than the timeout.
TEST(StoreBootstrap, AllExchangesHaveOneDeadline) {
  SharedStore store;
  Client clients[] = {Client(store), Client(store)};
  const auto make = [&](int rank) {
    StoreBootstrap::Options options = options_of(rank, 2);
    options.timeout = milliseconds(1000);
    return std::make_unique<StoreBootstrap>(clients[rank], std::move(options));
  };
  const auto first = make(0);
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(600));
    const auto second = make(1);
    try {
      second->meet("1", {});
      std::this_thread::sleep_for(milliseconds(800));
      second->exchange("later", "1", [] {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    }
  });
  try {
    first->meet("0", {});
    first->exchange("later", "0", [] {});
    ADD_FAILURE() << "the second exchange had a deadline of its own";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    EXPECT_EQ(error.rank(), 1) << error.what();
  }
  other.join();
}

TEST(StoreBootstrap, TheSameNameAgainAndAgain) {
  SharedStore store;
  for (int attempt = 0; attempt < 50; ++attempt) {
    OffloadAttempt ranks = start(store, attempt, 3, static_cast<uint32_t>(attempt));
    expect_complete(ranks, attempt);
  }
}

// One rank dies at each of its calls to the store in turn, the others some time later. The next
// attempt, with as many ranks or others, finds all that they wrote.
TEST(StoreBootstrap, EveryAttemptAfterADeathSucceeds) {
  uint32_t seed = 1;
  for (int victim = 0; victim < kMembers; ++victim) {
    for (int dies_at = 0; dies_at < 24; ++dies_at) {
      SharedStore store;
      std::mt19937 random(seed);
      int attempt = 0;
      for (; attempt < 3; ++attempt) {
        OffloadAttempt ranks = start(store, attempt, kMembers, seed++, victim, dies_at);
        ranks[static_cast<size_t>(victim)]->join();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
        kill_all(ranks);
      }
      OffloadAttempt ranks = start(store, attempt, 2 + static_cast<int>(random() % 6), seed++);
      expect_complete(ranks, attempt);
      ASSERT_FALSE(HasFailure()) << "victim " << victim << " at call " << dies_at;
    }
  }
}

// The others do not die: they wait, and go on with the successor. So a launcher that restarts only
// what died works as well.
TEST(StoreBootstrap, SurvivorsGoOnWithASuccessor) {
  uint32_t seed = 1000;
  for (int victim = 0; victim < kMembers; ++victim) {
    // Before the victim has acknowledged the roster, or has committed it.
    const int calls = victim == 0 ? 6 : 5;
    for (int dies_at = 0; dies_at < calls; ++dies_at) {
      SharedStore store;
      OffloadAttempt ranks = start(store, 0, kMembers, seed++, victim, dies_at);
      ranks[static_cast<size_t>(victim)]->join();
      std::this_thread::sleep_for(milliseconds(5));
      ranks[static_cast<size_t>(victim)] = std::make_unique<Process>(
          store, victim, kMembers, "0/" + std::to_string(victim), -1, seed++);
      expect_complete(ranks, 0);
      ASSERT_FALSE(HasFailure()) << "victim " << victim << " at call " << dies_at;
    }
  }
}

// Ranks of the last attempt still run, and write, while those of the next begin. Whoever succeeds
// has the same set as all others who have any of its members.
TEST(StoreBootstrap, LateRanksOfTheLastAttemptMixNothingUp) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SharedStore store;
    std::mt19937 random(seed);
    OffloadAttempt old = start(store, 0, kMembers, seed, static_cast<int>(random() % kMembers),
                               static_cast<int>(random() % 16));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    OffloadAttempt next = start(store, 1, kMembers, seed + 1000);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill_all(old);
    // The launcher's answer if the next attempt met one of the last.
    std::this_thread::sleep_for(milliseconds(30));
    kill_all(next);
    std::map<std::string, std::vector<std::string>> set_of;
    for (OffloadAttempt* attempt : {&old, &next}) {
      for (auto& rank : *attempt) {
        for (const std::string& peer_info : rank->peer_infos) {
          const auto [it, added] = set_of.emplace(peer_info, rank->peer_infos);
          EXPECT_EQ(it->second, rank->peer_infos) << peer_info << ", seed " << seed;
        }
      }
    }
    OffloadAttempt last = start(store, 2, kMembers, seed + 2000);
    expect_complete(last, 2);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

/// A rank that cannot make the group, and knows it before it joins, or only afterwards.
class AFailure : public ::testing::TestWithParam<bool> {};

TEST_P(AFailure, IsToldToAll) {
  const bool joins_first = GetParam();
  for (int victim = 0; victim < kMembers; ++victim) {
    SharedStore store;
    std::vector<std::unique_ptr<Process>> others;
    Client client(store);
    std::thread failing([&] {
      StoreBootstrap bootstrap(client, options_of(victim, kMembers));
      if (joins_first) bootstrap.meet("peer_info", {});
      bootstrap.fail(Error(ErrorCode::kTransport, "no room in /dev/shm"));
      bootstrap.stay([] {});
    });
    for (int r = 0; r < kMembers; ++r) {
      if (r != victim) others.push_back(std::make_unique<Process>(store, r, kMembers, "peer_info"));
    }
    const std::string expected = "rank " + std::to_string(victim) + " of " +
                                 std::to_string(kMembers) +
                                 " could not make the group 'g': no room in /dev/shm";
    for (auto& rank : others) {
      rank->join();
      ASSERT_TRUE(rank->error);
      EXPECT_EQ(rank->error->code(), ErrorCode::kTransport);
      EXPECT_EQ(rank->error->rank(), victim);
      EXPECT_NE(std::string(rank->error->what()).find(expected), std::string::npos)
          << rank->error->what();
    }
    failing.join();
    // A later attempt does not take it for its own.
    OffloadAttempt next = start(store, 1, kMembers, 1);
    expect_complete(next, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(StoreBootstrap, AFailure, ::testing::Bool(), [](const auto& joins_first) {
  return std::string(joins_first.param ? "AfterJoining" : "BeforeJoining");
});

TEST(StoreBootstrap, AFailureIsToldToRanksThatComeLater) {
  SharedStore store;
  Client client(store);
  std::thread failing([&] {
    StoreBootstrap bootstrap(client, options_of(3, kMembers));
    bootstrap.fail(Error(ErrorCode::kTransport, "no room in /dev/shm"));
    bootstrap.stay([] {});
  });
  Process leader(store, 0, kMembers, "peer_info");
  std::this_thread::sleep_for(milliseconds(50));  // the others are late
  std::vector<std::unique_ptr<Process>> late;
  for (const int r : {1, 2, 4, 5}) {
    late.push_back(std::make_unique<Process>(store, r, kMembers, "peer_info"));
  }
  for (auto& rank : late) {
    rank->join();
    ASSERT_TRUE(rank->error);
    EXPECT_EQ(rank->error->rank(), 3) << rank->error->what();
  }
  failing.join();
}

// Outside of the store, where ranks of one host wait for each other's memory.
TEST(StoreBootstrap, AWaitForSomethingElseEndsToo) {
  for (const bool fails : {false, true}) {
    SharedStore store;
    std::promise<void> first_wait_is_over;
    std::thread other([&] {
      Client client(store);
      StoreBootstrap bootstrap(client, options_of(1, 2));
      bootstrap.meet("b", {});
      first_wait_is_over.get_future().wait();
      if (fails) bootstrap.fail(Error(ErrorCode::kTransport, "no file descriptors"));
    });
    Client client(store);
    StoreBootstrap::Options options = options_of(0, 2);
    options.timeout = milliseconds(fails ? 60'000 : 1'500);
    StoreBootstrap bootstrap(client, options);
    bootstrap.meet("a", {});
    int left = 3;
    bootstrap.wait_for([&] { return --left > 0 ? 1 : -1; }, [] {});
    EXPECT_EQ(left, 0);
    first_wait_is_over.set_value();
    other.join();
    try {
      bootstrap.wait_for([] { return 1; }, [] {});
      ADD_FAILURE() << "it never came";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), fails ? ErrorCode::kTransport : ErrorCode::kTimeout);
      EXPECT_EQ(error.rank(), 1);
      const std::string expected =
          fails ? "no file descriptors" : "rank 1 joined, but did not go on";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(StoreBootstrap, MissingRanksAreNamed) {
  for (const int present : {0, 1}) {
    SharedStore store;
    Client client(store);
    StoreBootstrap::Options options = options_of(present, 3);
    options.timeout = milliseconds(30);
    StoreBootstrap bootstrap(client, options);
    try {
      bootstrap.meet("peer_info", {});
      ADD_FAILURE() << "a group of one of three ranks";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      const std::string expected = present == 0
                                       ? "ranks 1, 2 did not join within the timeout of 30 ms"
                                       : "rank 0 did not join";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(StoreBootstrap, WorldSizesMustAgree) {
  SharedStore store;
  Process two(store, 0, 2, "a");
  Process three(store, 1, 3, "b");
  for (Process* rank : {&two, &three}) {
    rank->join();
    ASSERT_TRUE(rank->error);
    EXPECT_EQ(rank->error->code(), ErrorCode::kMismatch) << rank->error->what();
    EXPECT_NE(std::string(rank->error->what()).find("world size"), std::string::npos);
  }
}

TEST(StoreBootstrap, TwoProcessesWithTheSameRank) {
  for (const int rank : {0, 1}) {
    SharedStore store;
    Process one(store, rank, 3, "one");
    std::this_thread::sleep_for(milliseconds(10));
    Process other(store, rank, 3, "other");
    std::this_thread::sleep_for(milliseconds(10));
    OffloadAttempt rest;
    for (int r = 0; r < 3; ++r) {
      if (r != rank) rest.push_back(std::make_unique<Process>(store, r, 3, "peer_info"));
    }
    one.join();
    other.join();
    ASSERT_TRUE(one.error.has_value() != other.error.has_value());
    const Error& error = one.error ? *one.error : *other.error;
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_NE(std::string(error.what()).find("another process joined as rank"), std::string::npos)
        << error.what();
    for (auto& process : rest) {
      process->join();
      EXPECT_FALSE(process->error) << process->error->what();
    }
  }
}

TEST(StoreBootstrap, AnInterruptEndsTheWait) {
  SharedStore store;
  Client client(store);
  int looks = 0;
  StoreBootstrap::Options options = options_of(1, 2);
  options.check_interrupt = [&] {
    if (++looks == 3) throw std::runtime_error("Ctrl-C");
  };
  StoreBootstrap bootstrap(client, options);
  EXPECT_THROW(bootstrap.meet("peer_info", {}), std::runtime_error);
}

}  // namespace
}  // namespace q7x2
