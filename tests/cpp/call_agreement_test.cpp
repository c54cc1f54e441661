// Whether all ranks make the same calls, and who is late: ranks that are only state, and a network
// that is a queue.
#include "transport/group/call_agreement.h"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "simple_task.h"
#include "transport/group/membership.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::SimpleTask;

class FakeRank;

struct Network {
  std::vector<std::unique_ptr<FakeRank>> ranks;
  std::deque<Control> queue;
  ReactorLock lock;
  Locked locked{lock};

  FakeRank& at(int rank) { return *ranks[static_cast<size_t>(rank)]; }
  void deliver();
};

Membership members_of(int rank, int world_size) {
  std::vector<PeerInfo> peer_infos(static_cast<size_t>(world_size));
  for (size_t r = 0; r < peer_infos.size(); ++r) {
    peer_infos[r].pid = static_cast<int32_t>(r);
    peer_infos[r].hostname = "a";
    peer_infos[r].host_key = std::to_string(r);
  }
  return {"g", rank, std::move(peer_infos), std::vector<Peer*>(static_cast<size_t>(world_size))};
}

class FakeRank final : public CallAgreement::Environment {
 public:
  FakeRank(Network& network, int rank, int world_size)
      : network_(network), members_(members_of(rank, world_size)) {}

  /// Begins the call `name`, which waits for messages of `awaited`.
  SimpleTask& call(const std::string& name, uint64_t fingerprint, const std::vector<int>& awaited) {
    Locked& locked = network_.locked;
    const auto task = std::make_shared<SimpleTask>(name + " on rank " +
                                                   std::to_string(members_.rank()) + " of group");
    task->set_submitted(locked, Clock::now());
    EXPECT_TRUE(turns.submit(locked, task));
    turns.begin(locked, *task);
    task->record(locked).next_inquiry = CallAgreement::first_inquiry(*task);
    agreement.remember(locked, task->record(locked).sequence, fingerprint);
    for (const int rank : awaited) task->await(locked, rank);
    tasks.push_back(task);
    return *task;
  }

  bool is_usable(Locked&) const override { return !error; }
  void fail(Locked&, const Error& failure) override {
    if (!error) error = failure;
  }
  std::vector<std::shared_ptr<Task>> unfinished(Locked& locked) override {
    std::vector<std::shared_ptr<Task>> found;
    for (const auto& task : tasks) {
      if (!task->is_over(locked)) found.push_back(task);
    }
    return found;
  }
  bool is_waited_for() const override { return is_waiting; }
  bool is_member(Locked&, int rank) const override { return rank != members_.rank(); }
  bool connect(Locked&, int) override { return true; }
  Control control_to(int rank, ControlType type) const override {
    Control control;
    control.type = type;
    control.sender = members_.rank();
    control.receiver = rank;
    return control;
  }
  void send(Locked&, int, const Control& control) override { network_.queue.push_back(control); }
  void find_unexpected(Locked&, const std::function<bool(uint64_t, int)>& visit) override {
    if (unexpected) visit(unexpected->first, unexpected->second);
  }
  std::string call_text(Locked&, uint64_t) const override { return ""; }
  std::string life_of(Locked&, int) const override { return "its host answers"; }
  int awaited_elsewhere(Locked&) const override { return -1; }
  const FailedCalls& failed_calls(Locked&) const override { return failed; }

  TurnQueue turns;
  std::vector<std::shared_ptr<SimpleTask>> tasks;
  FailedCalls failed;
  std::optional<Error> error;
  std::optional<std::pair<uint64_t, int>> unexpected;  // tag, sender
  bool is_waiting = true;
  bool is_silent = false;

 private:
  Network& network_;
  const Membership members_;

 public:
  CallAgreement agreement{*this, members_, turns};
};

void Network::deliver() {
  while (!queue.empty()) {
    const Control control = queue.front();
    queue.pop_front();
    FakeRank& receiver = at(control.receiver);
    if (receiver.is_silent) continue;
    if (control.type == ControlType::kInquiry) {
      receiver.agreement.hear_inquiry(locked, control);
    } else {
      ASSERT_EQ(control.type, ControlType::kAnswer);
      receiver.agreement.hear_answer(locked, control);
    }
  }
}

class CallAgreementTest : public ::testing::Test {
 protected:
  explicit CallAgreementTest(int world_size = 4) {
    for (int r = 0; r < world_size; ++r) {
      network_.ranks.push_back(std::make_unique<FakeRank>(network_, r, world_size));
    }
  }

  FakeRank& at(int rank) { return network_.at(rank); }
  /// Each rank that is not silent keeps house, half a second later each time.
  void keep_house() {
    passed_ += milliseconds(600);
    for (const auto& rank : network_.ranks) {
      if (!rank->is_silent) rank->agreement.housekeep(network_.locked, Clock::now() + passed_);
    }
    network_.deliver();
  }
  /// All make the same call, and wait for each other.
  void call_together() {
    for (int r = 0; r < 4; ++r) {
      at(r).call("all_reduce (sequence 0)", 7, {(r + 1) % 4, (r + 2) % 4, (r + 3) % 4});
    }
  }
  CallAgreement::Lateness lateness(int rank) {
    return at(rank).agreement.lateness(network_.locked, *at(rank).tasks.back());
  }

  Network network_;
  milliseconds passed_{0};
};

TEST_F(CallAgreementTest, RanksThatMakeTheSameCallsAgree) {
  call_together();
  for (int i = 0; i < 3; ++i) keep_house();
  for (int r = 0; r < 4; ++r) EXPECT_FALSE(at(r).error) << at(r).error->what();
}

// All wait and none sends: each question in the circle finds it.
TEST_F(CallAgreementTest, RanksThatWaitInACircleLearnThatTheyDiffer) {
  for (int r = 0; r < 4; ++r) {
    at(r).call("reduce (sequence 0, root " + std::to_string(r) + ")", static_cast<uint64_t>(r),
               {(r + 1) % 4});
  }
  keep_house();
  for (int r = 0; r < 4; ++r) {
    ASSERT_TRUE(at(r).error) << r;
    EXPECT_EQ(at(r).error->code(), ErrorCode::kMismatch);
    const std::string text = at(r).error->what();
    EXPECT_NE(text.find("rank " + std::to_string(r) + " (pid"), std::string::npos) << text;
    EXPECT_NE(text.find("root " + std::to_string(r)), std::string::npos) << text;
    EXPECT_EQ(text.find(" of group"), std::string::npos) << text;
  }
}

TEST_F(CallAgreementTest, OneThatMeetsAMessageThatDoesNotFitHearsWhatWasCalled) {
  SimpleTask& mine = at(0).call("barrier (sequence 0)", 1, {1});
  at(1).call("all_reduce (sequence 0)", 2, {0});
  at(0).agreement.disagree(network_.locked, mine, 1);
  network_.deliver();
  ASSERT_TRUE(at(1).error) << "it compares the calls";
  const std::string text = at(1).error->what();
  EXPECT_NE(text.find("rank 0 (pid 0 on a) called barrier"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1 (pid 1 on a) called all_reduce"), std::string::npos) << text;
}

TEST_F(CallAgreementTest, WithoutAnAnswerItFailsSoonAfter) {
  at(1).is_silent = true;
  SimpleTask& mine = at(0).call("barrier (sequence 0)", 1, {1});
  at(0).agreement.disagree(network_.locked, mine, 1);
  at(0).agreement.housekeep(network_.locked, Clock::now());
  EXPECT_FALSE(at(0).error);
  at(0).agreement.housekeep(network_.locked, Clock::now() + milliseconds(200));
  ASSERT_TRUE(at(0).error);
  EXPECT_EQ(at(0).error->code(), ErrorCode::kMismatch);
  EXPECT_EQ(at(0).error->rank(), 1);
}

TEST_F(CallAgreementTest, AMessageThatNobodyReceivesHasASenderThatCalledSomethingElse) {
  at(0).call("broadcast (sequence 0)", 1, {}).end(network_.locked);
  SimpleTask& next = at(0).call("broadcast (sequence 1)", 1, {1});
  at(1).call("reduce (sequence 0)", 2, {});
  at(0).unexpected = {tag::collective(0, 1, 0, 0, 0, 2, 4), 1};
  EXPECT_TRUE(at(0).turns.end(network_.locked, *at(0).tasks.front()));
  EXPECT_TRUE(at(0).agreement.finds_leftover(network_.locked));
  EXPECT_FALSE(next.is_over(network_.locked));
  network_.deliver();
  EXPECT_TRUE(at(1).error);
  // One of a later call is no leftover.
  at(2).call("barrier (sequence 0)", 3, {1});
  at(2).unexpected = {tag::collective(0, 1, 1, 0, 0, 3, 4), 1};
  EXPECT_FALSE(at(2).agreement.finds_leftover(network_.locked));
}

// A rank may have begun nothing where the others have, and messages may come late.
TEST_F(CallAgreementTest, OfACallThatHasFailedNothingIsExpected) {
  const Error why(ErrorCode::kTimeout, "it timed out");
  at(0).call("all_reduce (sequence 0)", 1, {1}).end(network_.locked);
  at(1).call("all_reduce (sequence 0)", 2, {0});
  at(0).failed.add(0, why, {});
  const uint64_t tag = tag::collective(0, 1, 0, 0, 0, 2, 4);
  EXPECT_FALSE(at(0).agreement.hear_unexpected(network_.locked, tag, 1));
  EXPECT_TRUE(at(2).agreement.hear_unexpected(network_.locked, tag, 1));
  keep_house();
  EXPECT_FALSE(at(0).error) << "it was asked for a call that has failed here";
  EXPECT_FALSE(at(1).error);
}

// 0 waits for 1, which waits for 2, which waits for 3, which has not made the call.
TEST_F(CallAgreementTest, TheNameOfTheOneThatIsLateTravelsAlongTheChain) {
  for (int r = 0; r < 3; ++r) at(r).call("all_reduce (sequence 0)", 7, {r + 1});
  at(3).is_waiting = false;
  for (int i = 0; i < 3; ++i) keep_house();
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(lateness(r).rank, 3) << lateness(r).text;
    EXPECT_NE(lateness(r).text.find("; rank 3 (pid 3 on a) is late"), std::string::npos);
  }
  EXPECT_NE(lateness(2).text.find("it has not made this call, its host answers"),
            std::string::npos);
  at(3).call("all_reduce (sequence 0)", 7, {});
  for (int i = 0; i < 4; ++i) keep_house();
  EXPECT_EQ(lateness(0).rank, -1) << lateness(0).text;
}

TEST_F(CallAgreementTest, OneThatFallsSilentIsLateWhateverItSaidBefore) {
  call_together();
  keep_house();
  EXPECT_EQ(lateness(0).rank, -1) << lateness(0).text;
  at(1).is_silent = true;
  keep_house();
  std::this_thread::sleep_for(milliseconds(550));
  EXPECT_EQ(lateness(0).rank, 1) << lateness(0).text;
}

TEST_F(CallAgreementTest, ARankThatMakesTheGroupNamesTheOneItWaitsFor) {
  at(1).agreement.set_awaited(network_.locked, 2);
  at(2).is_waiting = false;
  at(0).call("all_reduce (sequence 0)", 7, {1});
  for (int i = 0; i < 2; ++i) keep_house();
  EXPECT_EQ(lateness(0).rank, 2) << lateness(0).text;
  EXPECT_EQ(at(1).agreement.awaited_rank(network_.locked), 2);
  at(1).agreement.set_awaited(network_.locked, -1);
  EXPECT_EQ(at(1).agreement.awaited_rank(network_.locked), -1);
}

TEST_F(CallAgreementTest, AnotherGroupMayAskWhomARankWaitsFor) {
  const TimePoint before = Clock::now();
  at(1).call("all_reduce (sequence 0)", 7, {2});
  at(2).is_waiting = false;
  keep_house();
  at(0).agreement.ask_whom_it_awaits(network_.locked, 1);
  network_.deliver();
  const std::string late = at(0).agreement.late_behind(network_.locked, 1, before);
  EXPECT_EQ(late, "; rank 2 (pid 2 on a) of group 'g' is late: its host answers");
  EXPECT_EQ(at(0).agreement.late_behind(network_.locked, 1, Clock::now()), "");
}

}  // namespace
}  // namespace q7x2
