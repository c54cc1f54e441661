// Runs a test's body on several ranks, each a separate process.
//
// The ranks are forked before the parent has used UCX, which does not survive a fork. A board in
// shared memory replaces the c10d Store. gtest's EXPECT and ASSERT work in a rank: the parent
// repeats each failure, with the rank. Ranks that have not ended at the deadline are killed, and
// the report says what each was doing.
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

/// The interface of the body to its rank. Every wait in it ends with an exception at the deadline.
class Rank {
 public:
  Rank(Board& board, int rank, int world_size, std::chrono::seconds deadline);

  const int rank;
  const int world_size;

  Runtime& runtime();
  /// Releases the runtime, so that a later call makes a new one, unless a group still uses it.
  void drop_runtime() { runtime_.reset(); }

  /// Makes the group `name` of all ranks, or of `members` in their order. Names are used once.
  std::shared_ptr<Group> group(const std::string& name = "world",
                               const std::vector<int>& members = {}, bool eager = false);

  /// Waits for other ranks' memory as a Bootstrap does.
  void wait_for(const std::function<int()>& missing, const std::function<void()>& check);

  /// Publishes `bytes` under `key`. Each key can be used once.
  void put(const std::string& key, const std::string& bytes);
  /// The bytes that `from` has published; waits for them.
  std::string get(int from, const std::string& key);
  /// Waits until all ranks have called it; independent of the code under test.
  void barrier();
  pid_t pid_of(int other) const;
  /// Describes the next action, for the report if this rank does not end.
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
  /// Ranks that are to be killed by SIGKILL; any other end of them is a failure.
  std::set<int> killed = {};
  /// With sanitizers it is multiplied by `kSlowdown`.
  std::chrono::seconds deadline{60};
};

void run_ranks(int world_size, const std::function<void(Rank&)>& body,
               const RunOptions& options = {});

}  // namespace q7x2::test
