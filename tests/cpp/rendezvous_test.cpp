// The rendezvous over a store that outlives the ranks. Ranks are threads; one that is killed stops
// at one of its calls to the store, like a process that dies there.
#include "transport/rendezvous.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Killed : std::exception {};

/// The store of a job, as the launcher keeps it.
class SharedStore {
 public:
  void set(const std::string& key, const std::string& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  int64_t add(const std::string& key, int64_t amount) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string& value = values_[key];
    const int64_t sum = (value.empty() ? 0 : std::stoll(value)) + amount;
    value = std::to_string(sum);
    return sum;
  }
  bool wait(const std::vector<std::string>& keys, milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      return std::all_of(keys.begin(), keys.end(),
                         [&](const auto& key) { return values_.contains(key); });
    });
  }
  std::string get(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// One rank's way to the store.
class Client final : public KeyStore {
 public:
  explicit Client(SharedStore& store, int dies_at = -1, uint32_t seed = 0)
      : store_(store), left_(dies_at), random_(seed) {}

  void kill() { killed_ = true; }
  int calls() const { return calls_; }

  void set(const std::string& key, const std::string& value) override {
    step();
    store_.set(key, value);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    step();
    return store_.add(key, amount);
  }
  bool check(const std::string& key) override {
    step();
    return store_.wait({key}, milliseconds(0));
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    step();
    std::vector<std::string> values;
    for (const auto& key : keys) values.push_back(store_.get(key));
    return values;
  }
  bool wait(const std::vector<std::string>& keys, milliseconds timeout) override {
    step();
    return store_.wait(keys, timeout);
  }

 private:
  void step() {
    if (random_() % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    }
    ++calls_;
    if (killed_ || left_-- == 0) {
      killed_ = true;
      throw Killed();
    }
  }

  SharedStore& store_;
  int left_;
  int calls_ = 0;
  std::mt19937 random_;
  std::atomic<bool> killed_{false};
};

/// A process that is, or wants to be, a rank of the group.
class Process {
 public:
  Process(SharedStore& store, int rank, int size, std::string card, int dies_at = -1,
          uint32_t seed = 0)
      : client(store, dies_at, seed),
        thread_([this, rank, size, card = std::move(card)] { run(rank, size, card); }) {}
  ~Process() { join(); }

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // After `join`.
  std::vector<std::string> cards;  ///< empty where it failed
  std::vector<std::string> later;  ///< of a second exchange
  std::optional<Error> error;
  Client client;

 private:
  void run(int rank, int size, const std::string& card) {
    Rendezvous rendezvous(client, {.rank = rank,
                                   .size = size,
                                   .group = "g",
                                   .timeout = milliseconds(20'000),
                                   .slice = milliseconds(2)});
    try {
      auto found = rendezvous.exchange("card", card, [] {});
      later = rendezvous.exchange("later", "later " + card, [] {});
      rendezvous.finish([] {});
      cards = std::move(found);
    } catch (const Error& e) {
      error = e;
      rendezvous.fail(e);
    } catch (const Killed&) {
    }
  }

  std::thread thread_;
};

using Attempt = std::vector<std::unique_ptr<Process>>;

Attempt start(SharedStore& store, int attempt, int size, uint32_t seed, int victim = -1,
              int dies_at = -1) {
  Attempt ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<Process>(
        store, r, size, std::to_string(attempt) + "/" + std::to_string(r),
        r == victim ? dies_at : -1, seed * 131 + static_cast<uint32_t>(r)));
  }
  return ranks;
}

/// What the launcher does when one of its ranks has died.
void kill_all(Attempt& ranks) {
  for (auto& rank : ranks) rank->client.kill();
  for (auto& rank : ranks) rank->join();
}

void expect_complete(Attempt& ranks, int attempt) {
  std::vector<std::string> expected;
  std::vector<std::string> later;
  for (size_t r = 0; r < ranks.size(); ++r) {
    expected.push_back(std::to_string(attempt) + "/" + std::to_string(r));
    later.push_back("later " + expected.back());
  }
  for (auto& rank : ranks) {
    rank->join();
    EXPECT_FALSE(rank->error) << rank->error->what();
    EXPECT_EQ(rank->cards, expected);
    EXPECT_EQ(rank->later, later);
  }
}

TEST(Rendezvous, AllFindEachOther) {
  for (const int size : {1, 2, 3, 8}) {
    SharedStore store;
    Attempt ranks = start(store, 0, size, static_cast<uint32_t>(size));
    expect_complete(ranks, 0);
  }
}

TEST(Rendezvous, TheSameNameAgainAndAgain) {
  SharedStore store;
  for (int attempt = 0; attempt < 50; ++attempt) {
    Attempt ranks = start(store, attempt, 3, static_cast<uint32_t>(attempt));
    expect_complete(ranks, attempt);
  }
}

// One rank dies at each of its calls to the store in turn, the others some time later. The next
// attempt, with as many ranks or others, finds all that they wrote.
TEST(Rendezvous, EveryAttemptAfterADeathSucceeds) {
  uint32_t seed = 1;
  for (int victim = 0; victim < 3; ++victim) {
    for (int dies_at = 0; dies_at < 16; ++dies_at) {
      SharedStore store;
      std::mt19937 random(seed);
      int attempt = 0;
      for (; attempt < 3; ++attempt) {
        Attempt ranks = start(store, attempt, 3, seed++, victim, dies_at);
        ranks[static_cast<size_t>(victim)]->join();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
        kill_all(ranks);
      }
      Attempt ranks = start(store, attempt, 2 + static_cast<int>(random() % 3), seed++);
      expect_complete(ranks, attempt);
      ASSERT_FALSE(HasFailure()) << "victim " << victim << " at call " << dies_at;
    }
  }
}

// The others do not die: they wait, and go on with the successor. So a launcher that restarts only
// what died works as well.
TEST(Rendezvous, SurvivorsGoOnWithASuccessor) {
  uint32_t seed = 1000;
  for (int victim = 0; victim < 3; ++victim) {
    for (int dies_at = 0; dies_at < 5; ++dies_at) {
      SharedStore store;
      Attempt ranks = start(store, 0, 3, seed++, victim, dies_at);
      ranks[static_cast<size_t>(victim)]->join();
      std::this_thread::sleep_for(milliseconds(5));
      ranks[static_cast<size_t>(victim)] =
          std::make_unique<Process>(store, victim, 3, "0/" + std::to_string(victim), -1, seed++);
      expect_complete(ranks, 0);
      ASSERT_FALSE(HasFailure()) << "victim " << victim << " at call " << dies_at;
    }
  }
}

// Ranks of the last attempt still run, and write, while those of the next begin. Whoever succeeds
// has the same set as all others who have any of its members.
TEST(Rendezvous, LateRanksOfTheLastAttemptMixNothingUp) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SharedStore store;
    std::mt19937 random(seed);
    Attempt old =
        start(store, 0, 3, seed, static_cast<int>(random() % 3), static_cast<int>(random() % 12));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    Attempt next = start(store, 1, 3, seed + 1000);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill_all(old);
    // The launcher's answer if the next attempt met one of the last.
    std::this_thread::sleep_for(milliseconds(30));
    kill_all(next);
    std::map<std::string, std::vector<std::string>> set_of;
    for (Attempt* attempt : {&old, &next}) {
      for (auto& rank : *attempt) {
        for (const std::string& card : rank->cards) {
          const auto [it, added] = set_of.emplace(card, rank->cards);
          EXPECT_EQ(it->second, rank->cards) << card << ", seed " << seed;
        }
      }
    }
    Attempt last = start(store, 2, 3, seed + 2000);
    expect_complete(last, 2);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(Rendezvous, AFailureIsToldToAll) {
  for (int victim = 0; victim < 3; ++victim) {
    SharedStore store;
    std::vector<std::unique_ptr<Process>> others;
    Client client(store);
    std::thread failing([&] {
      Rendezvous rendezvous(client, {.rank = victim,
                                     .size = 3,
                                     .group = "g",
                                     .timeout = milliseconds(20'000),
                                     .slice = milliseconds(2)});
      rendezvous.fail(Error(ErrorCode::kTransport, "no room in /dev/shm"));
    });
    const auto started = Clock::now();
    for (int r = 0; r < 3; ++r) {
      if (r != victim) others.push_back(std::make_unique<Process>(store, r, 3, "card"));
    }
    for (auto& rank : others) {
      rank->join();
      ASSERT_TRUE(rank->error);
      EXPECT_EQ(rank->error->code(), ErrorCode::kTransport);
      EXPECT_EQ(rank->error->rank(), victim);
      EXPECT_NE(std::string(rank->error->what())
                    .find("rank " + std::to_string(victim) +
                          " of 3 could not make the group 'g': no room in /dev/shm"),
                std::string::npos)
          << rank->error->what();
    }
    failing.join();
    EXPECT_LT(Clock::now() - started, std::chrono::seconds(10));
    // A later attempt does not take it for its own.
    Attempt next = start(store, 1, 3, 1);
    expect_complete(next, 1);
  }
}

TEST(Rendezvous, AFailureAfterJoiningIsToldToAll) {
  for (int victim = 0; victim < 3; ++victim) {
    SharedStore store;
    std::vector<std::unique_ptr<Process>> others;
    Client client(store);
    std::thread failing([&] {
      Rendezvous rendezvous(client, {.rank = victim,
                                     .size = 3,
                                     .group = "g",
                                     .timeout = milliseconds(20'000),
                                     .slice = milliseconds(2)});
      rendezvous.exchange("card", "card", [] {});
      rendezvous.fail(Error(ErrorCode::kTransport, "no file descriptors"));
    });
    for (int r = 0; r < 3; ++r) {
      if (r != victim) others.push_back(std::make_unique<Process>(store, r, 3, "card"));
    }
    for (auto& rank : others) {
      rank->join();
      ASSERT_TRUE(rank->error);
      EXPECT_EQ(rank->error->rank(), victim) << rank->error->what();
    }
    failing.join();
  }
}

TEST(Rendezvous, MissingRanksAreNamed) {
  for (const int present : {0, 1}) {
    SharedStore store;
    Client client(store);
    Rendezvous rendezvous(client, {.rank = present,
                                   .size = 3,
                                   .group = "g",
                                   .timeout = milliseconds(30),
                                   .slice = milliseconds(2)});
    try {
      rendezvous.exchange("card", "card", [] {});
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

TEST(Rendezvous, WorldSizesMustAgree) {
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

TEST(Rendezvous, TwoProcessesWithTheSameRank) {
  for (const int rank : {0, 1}) {
    SharedStore store;
    Process one(store, rank, 3, "one");
    std::this_thread::sleep_for(milliseconds(10));
    Process other(store, rank, 3, "other");
    std::this_thread::sleep_for(milliseconds(10));
    Attempt rest;
    for (int r = 0; r < 3; ++r) {
      if (r != rank) rest.push_back(std::make_unique<Process>(store, r, 3, "card"));
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

TEST(Rendezvous, AnInterruptEndsTheWait) {
  SharedStore store;
  Client client(store);
  int looks = 0;
  Rendezvous rendezvous(client, {.rank = 1,
                                 .size = 2,
                                 .group = "g",
                                 .timeout = milliseconds(20'000),
                                 .check_interrupt =
                                     [&] {
                                       if (++looks == 3) throw std::runtime_error("Ctrl-C");
                                     },
                                 .slice = milliseconds(2)});
  EXPECT_THROW(rendezvous.exchange("card", "card", [] {}), std::runtime_error);
}

// What a healthy start costs, as the header says.
TEST(Rendezvous, FewRoundTrips) {
  SharedStore store;
  Attempt ranks = start(store, 0, 4, 5);
  expect_complete(ranks, 0);
  for (auto& rank : ranks) {
    // Those that look while they wait for slow threads count as well.
    EXPECT_LT(rank->client.calls(), 100);
  }
}

}  // namespace
}  // namespace q7x2
