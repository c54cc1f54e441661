// Runs a test's body on several ranks, each a process of its own.
//
// The ranks are forked before the parent has touched UCX, which does not survive a fork. What a
// c10d Store would do for them, a board in shared memory does. gtest's EXPECT and ASSERT work in a
// rank: the parent repeats each failure, with the rank. Ranks that have not ended at the deadline
// are killed, and the report says what each was doing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/bootstrap/wire_up.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2::test {

struct Board;

/// What the body sees of its rank. Every wait in here ends with an exception at the deadline.
class Rank {
 public:
  Rank(Board& board, int rank, int world_size, std::chrono::seconds deadline);

  const int rank;
  const int world_size;

  Runtime& runtime();
  /// Lets go of the runtime, so that a later call makes a new one, unless a group still uses it.
  void drop_runtime() { runtime_.reset(); }

  /// Makes the group `name` of all ranks, or of `members` in their order. Names are used once.
  std::shared_ptr<Group> group(const std::string& name = "world",
                               const std::vector<int>& members = {}, bool eager = false);

  /// Waits for other ranks' memory as a Bootstrap does.
  void wait_for(const std::function<int()>& missing, const std::function<void()>& check);

  /// Publishes `bytes` under `key`, once a key.
  void put(const std::string& key, const std::string& bytes);
  /// What `from` published, or will soon.
  std::string get(int from, const std::string& key);
  /// Until all ranks are here; independent of the code under test.
  void barrier();
  pid_t pid_of(int other) const;
  /// Says what comes next, for the report if this rank does not end.
  void at(const std::string& what);

 private:
  void wait_until(const std::string& what, const std::function<bool()>& condition);

  Board& board_;
  const TimePoint give_up_;
  std::shared_ptr<Runtime> runtime_;
  uint32_t barriers_ = 0;
};

/// A Bootstrap of one rank whose exchanges are the test's.
class ScriptedBootstrap final : public Bootstrap {
 public:
  using Exchange =
      std::function<std::vector<std::string>(const std::string& what, const std::string& mine)>;

  ScriptedBootstrap(Rank& rank, Exchange exchange) : rank_(rank), exchange_(std::move(exchange)) {}

  /// Called before `meet` returns. It returns when all are prepared.
  void set_prepared(std::function<void()> prepared) { prepared_ = std::move(prepared); }

  Met meet(const std::string& mine, const Hooks& hooks) override {
    Met met{.all = exchange_("peer_info", mine), .decision = {}};
    if (hooks.prepare) hooks.prepare(met.all);
    prepared_();
    return met;
  }
  std::vector<std::string> exchange(const std::string& what, const std::string& mine,
                                    const Check&) override {
    return exchange_(what, mine);
  }
  void wait_for(const std::function<int()>& missing, const Check& check) override {
    rank_.wait_for(missing, check);
  }
  void finish(const Check&) override {}
  void fail(const Error&) noexcept override {}

 private:
  Rank& rank_;
  const Exchange exchange_;
  std::function<void()> prepared_ = [] {};
};

struct RunOptions {
  /// Ranks that are to be killed by SIGKILL; any other end of theirs is a failure.
  std::set<int> killed = {};
  /// With sanitizers it is `kSlowdown` times as far off.
  std::chrono::seconds deadline{60};
};

void run_ranks(int world_size, const std::function<void(Rank&)>& body,
               const RunOptions& options = {});

}  // namespace q7x2::test
