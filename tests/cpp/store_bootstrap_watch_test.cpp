// Processes that die while the ranks meet, and who hears of it. Ranks are threads; a peer info is
// the name of a process, and the town knows which of them have died.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "shared_store.h"
#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::Client;
using test::Killed;
using test::SharedStore;

constexpr int kRanks = 13;

class Town {
 public:
  void declare_dead(const std::string& peer_info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    dead_.insert(peer_info);
  }
  bool is_dead(const std::string& peer_info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return dead_.contains(peer_info);
  }
  void note_watched(const std::string& peer_info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_.insert(peer_info);
  }
  /// Returns when another process watches the one with this peer info, so it has joined.
  void await_watched(const std::string& peer_info) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (watched_.contains(peer_info)) return;
      }
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << "nobody watches " << peer_info;
        return;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

 private:
  std::mutex mutex_;
  std::set<std::string> dead_;
  std::set<std::string> watched_;
};

class TownMonitor final : public MemberMonitor {
 public:
  explicit TownMonitor(Town& town) : town_(town) {}

  void watch(int rank, const std::string& peer_info, const std::string&, bool also_far) override {
    if (also_far) {
      watched_[rank] = {peer_info, !town_.is_dead(peer_info)};
      town_.note_watched(peer_info);
      most_ = std::max(most_, watched_.size());
    }
  }
  void forget() override { watched_.clear(); }
  std::vector<Loss> losses() override {
    std::vector<Loss> losses;
    for (const auto& [rank, who] : watched_) {
      if (town_.is_dead(who.peer_info)) {
        losses.push_back({rank, "rank " + std::to_string(rank) + " failed: its process has ended",
                          who.was_seen});
      }
    }
    return losses;
  }
  void ask(const std::vector<int>& ranks) override { asked_.insert(ranks.begin(), ranks.end()); }
  std::string late_behind(int rank) override {
    return asked_.contains(rank) ? "; rank " + std::to_string(rank + 100) + " is late" : "";
  }
  size_t most() const { return most_; }

 private:
  struct Watched {
    std::string peer_info;
    bool was_seen = false;
  };
  Town& town_;
  std::map<int, Watched> watched_;
  size_t most_ = 0;
  std::set<int> asked_;
};

/// A process that is a rank of the group. When it is killed, the town knows.
class Process {
 public:
  Process(SharedStore& store, Town& town, int rank, int size, std::string peer_info,
          int dies_at = -1)
      : client_(store, dies_at, static_cast<uint32_t>(rank) + 1),
        town_(town),
        monitor_(town),
        peer_info_(std::move(peer_info)),
        thread_([this, rank, size] { run(rank, size); }) {}
  ~Process() { join(); }

  void kill() {
    client_.kill();
    town_.declare_dead(peer_info_);
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // After `join`.
  std::optional<Error> error;
  std::vector<std::string> peer_infos;
  size_t most_watched() const { return monitor_.most(); }

 private:
  void run(int rank, int size) {
    StoreBootstrap bootstrap(client_, {.rank = rank,
                                       .size = size,
                                       .group = "g",
                                       .timeout = milliseconds(60'000),
                                       .monitor = &monitor_,
                                       .pause = milliseconds(2),
                                       .branches = 3,
                                       .patience = milliseconds(300)});
    try {
      peer_infos = bootstrap.meet(peer_info_, {}).all;
    } catch (const Error& e) {
      error = e;
      bootstrap.fail(e);
      bootstrap.stay([] {});
    } catch (const Killed&) {
      town_.declare_dead(peer_info_);
    }
  }

  Client client_;
  Town& town_;
  TownMonitor monitor_;
  const std::string peer_info_;
  std::thread thread_;
};

using Ranks = std::map<int, std::unique_ptr<Process>>;

std::string peer_info_of(int attempt, int rank) {
  return std::to_string(attempt) + "/" + std::to_string(rank);
}

Ranks start(SharedStore& store, Town& town, int attempt, const std::set<int>& absent = {}) {
  Ranks ranks;
  for (int r = 0; r < kRanks; ++r) {
    if (!absent.contains(r)) {
      ranks[r] = std::make_unique<Process>(store, town, r, kRanks, peer_info_of(attempt, r));
    }
  }
  return ranks;
}

/// Returns when all have joined: a rank that comes after rank 0 has died waits for its successor.
void await_all(const Ranks& ranks, Town& town) {
  for (const auto& [rank, process] : ranks) town.await_watched(peer_info_of(0, rank));
}

void expect_all_name(Ranks& ranks, int victim) {
  for (auto& [rank, process] : ranks) {
    process->join();
    if (rank == victim) continue;
    ASSERT_TRUE(process->error) << "rank " << rank << " of a group with the dead rank " << victim;
    EXPECT_EQ(process->error->code(), ErrorCode::kPeerFailed) << process->error->what();
    EXPECT_EQ(process->error->rank(), victim) << process->error->what();
    EXPECT_NE(std::string(process->error->what())
                  .find("rank " + std::to_string(victim) + " failed: its process has ended"),
              std::string::npos)
        << process->error->what();
  }
}

/// All wait for a rank that does not come, when another one is killed.
TEST(StoreBootstrapWatch, ADeathEndsTheWaitOfAll) {
  for (const int victim : {0, 1, 5, 12}) {
    SharedStore store;
    Town town;
    Ranks ranks = start(store, town, 0, {7});
    await_all(ranks, town);
    ranks[victim]->kill();
    expect_all_name(ranks, victim);
    ASSERT_FALSE(HasFailure()) << "victim " << victim;
  }
}

/// Rank 0 has opened the epoch, so a peer info in it is of this attempt.
TEST(StoreBootstrapWatch, ARankThatDiedBeforeItWasSeenIsNamed) {
  for (const int victim : {1, 5, 12}) {
    SharedStore store;
    Town town;
    town.declare_dead(peer_info_of(0, victim));
    Ranks ranks = start(store, town, 0, {7});
    town.await_watched(peer_info_of(0, victim));
    ranks[victim]->kill();
    expect_all_name(ranks, victim);
    ASSERT_FALSE(HasFailure()) << "victim " << victim;
  }
}

/// The next attempt finds the peer infos, the epoch and the mark of an attempt whose processes are
/// dead.
TEST(StoreBootstrapWatch, WhatDiedInAnEarlierAttemptIsNoDeathOfThisOne) {
  for (const int victim : {0, 1, 5}) {
    SharedStore store;
    Town town;
    {
      Ranks ranks = start(store, town, 0, {7});
      await_all(ranks, town);
      ranks[victim]->kill();
      std::this_thread::sleep_for(milliseconds(20));
      for (auto& [rank, process] : ranks) process->kill();
    }
    // All but rank 0 find the old epoch first.
    Ranks ranks = start(store, town, 1, {0});
    std::this_thread::sleep_for(milliseconds(100));
    ranks[0] = std::make_unique<Process>(store, town, 0, kRanks, peer_info_of(1, 0));
    for (auto& [rank, process] : ranks) {
      process->join();
      EXPECT_FALSE(process->error) << process->error->what();
      ASSERT_EQ(process->peer_infos.size(), static_cast<size_t>(kRanks));
      EXPECT_EQ(process->peer_infos[3], peer_info_of(1, 3));
    }
    ASSERT_FALSE(HasFailure()) << "victim " << victim;
  }
}

/// A rank that is late may itself wait for another one, which the errors of the others name.
TEST(StoreBootstrapWatch, ARankThatDoesNotComeIsAskedWhomItWaitsFor) {
  SharedStore store;
  Town town;
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Client client(store);
      TownMonitor monitor(town);
      StoreBootstrap bootstrap(client, {.rank = r,
                                        .size = 3,
                                        .group = "g",
                                        .timeout = milliseconds(2'000),
                                        .monitor = &monitor,
                                        .pause = milliseconds(2)});
      try {
        bootstrap.meet(peer_info_of(0, r), {});
      } catch (const Error& error) {
        texts[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("rank 2 did not join"), std::string::npos) << text;
    EXPECT_NE(text.find("; rank 102 is late"), std::string::npos) << text;
  }
}

TEST(StoreBootstrapWatch, ARankWatchesItsNeighboursInTheTree) {
  SharedStore store;
  Town town;
  Ranks ranks = start(store, town, 0, {12});
  for (const int child : {1, 2, 3}) town.await_watched(peer_info_of(0, child));
  ranks[12] = std::make_unique<Process>(store, town, 12, kRanks, peer_info_of(0, 12));
  for (auto& [rank, process] : ranks) {
    process->join();
    EXPECT_FALSE(process->error);
    EXPECT_LE(process->most_watched(), 4U) << "three children and rank 0";
  }
  EXPECT_EQ(ranks[0]->most_watched(), 3U);
}

}  // namespace
}  // namespace q7x2
