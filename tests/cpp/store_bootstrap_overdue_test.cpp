// A store may have done what it was asked, although a rank has heard of a death before the answer.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
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
using test::options_of;
using test::SharedStore;

constexpr int kMembers = 6;
constexpr int kDead = 2;
constexpr int kCalls = 12;  // more than a rank makes until it waits

/// Knows of one death, from some moment on.
class OneDeath final : public MemberMonitor {
 public:
  void watch(int, const std::string&, const std::string&, bool) override {}
  void forget() override {}
  std::vector<Loss> losses() override {
    if (!is_known) return {};
    return {{kDead, "rank 2 (pid 41 on host a) failed: its process has ended", true}};
  }
  void ask(const std::vector<int>&) override {}
  std::string late_behind(int) override { return ""; }

  bool is_known = false;
};

/// The answer of one call is overdue, though it is done.
class OverdueStore final : public KeyStore {
 public:
  /// `overdue`: the number of the call; -1: none.
  OverdueStore(SharedStore& store, int overdue) : client_(store), left_(overdue) {}

  std::function<void()> attend;  ///< called when the answer is overdue

  void set(const std::string& key, const std::string& value) override {
    client_.set(key, value);
    count();
  }
  int64_t add(const std::string& key, int64_t amount) override {
    const int64_t sum = client_.add(key, amount);
    count();
    return sum;
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    std::string found = client_.compare_set(key, expected, desired);
    count();
    return found;
  }
  using KeyStore::check;
  bool check(const std::vector<std::string>& keys) override {
    const bool found = client_.check(keys);
    count();
    return found;
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    auto values = client_.get(keys);
    count();
    return values;
  }
  void pause(std::chrono::microseconds time) override {
    client_.pause(time);
    count();
  }

 private:
  void count() {
    if (left_-- == 0) attend();
  }

  Client client_;
  int left_;
};

/// A rank that tries to make the group. Its thread ends when it has told the others.
class Rank {
 public:
  Rank(SharedStore& store, int rank, int overdue = -1)
      : store_(store, overdue), thread_([this, rank] {
          StoreBootstrap::Options options = options_of(rank, kMembers);
          options.monitor = &monitor_;
          StoreBootstrap bootstrap(store_, options);
          store_.attend = [&] {
            monitor_.is_known = true;
            bootstrap.attend();
          };
          try {
            bootstrap.meet("peer_info", {});
          } catch (const Error& failure) {
            error = failure;
            bootstrap.fail(failure);
            bootstrap.stay([] {});
          }
        }) {}
  ~Rank() { join(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  std::optional<Error> error;  ///< after `join`

 private:
  OneDeath monitor_;
  OverdueStore store_;
  std::thread thread_;
};

/// Whichever of its calls it is, and whether the others are there already or come later.
class AnOverdueAnswer : public ::testing::TestWithParam<int> {};

TEST_P(AnOverdueAnswer, DoesNotKeepTheNewsFromTheOthers) {
  const int hears = GetParam();
  for (int call = 0; call < kCalls; ++call) {
    for (const bool others_come_later : {false, true}) {
      SharedStore store;
      std::vector<std::unique_ptr<Rank>> ranks;
      const auto add_others = [&] {
        for (int r = 0; r < kMembers; ++r) {
          if (r != hears && r != kDead) ranks.push_back(std::make_unique<Rank>(store, r));
        }
      };
      if (!others_come_later) add_others();
      ranks.push_back(std::make_unique<Rank>(store, hears, call));
      if (others_come_later) {
        std::this_thread::sleep_for(milliseconds(10));
        add_others();
      }
      for (auto& rank : ranks) {
        rank->join();
        ASSERT_TRUE(rank->error) << "call " << call;
        EXPECT_EQ(rank->error->code(), ErrorCode::kPeerFailed)
            << "call " << call << ": " << rank->error->what();
        EXPECT_EQ(rank->error->rank(), kDead);
      }
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(StoreBootstrap, AnOverdueAnswer, ::testing::Values(0, 1, 4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace q7x2
