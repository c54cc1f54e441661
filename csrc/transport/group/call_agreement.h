// CallAgreement: whether all ranks of a group make the same calls, and who keeps the others
// waiting.
//
// Ranks that disagree about a message find out when it meets its receive. The agreement finds the
// rest: a message that nobody receives, and ranks that all wait while none sends.
//
// The rank that a call waits for may itself wait for another one. So a rank that has waited for a
// moment asks, and the answer says whether its peer has made the call, and whom the peer waits for,
// in this call or in the one that it is still in. A rank whose own answer changes tells those who
// asked. So the name of the rank that is late travels along the chain of those who wait: a rank
// that does not answer, or that neither has made the call nor waits. A rank may also stop after it
// has answered. So it must answer each question, and what others say of it counts more than an old
// answer of its own.
//
// A message is no call of the whole group. A rank that waits for one asks its peer again and again
// whom that waits for.
//
// A rank that is late is not dead. It is named in a warning first, and in the error of the call
// whose deadline passes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/group/call_progress.h"
#include "transport/group/failed_calls.h"
#include "transport/group/turn_queue.h"
#include "transport/peer/control.h"
#include "transport/task/task.h"
#include "transport/task/task_host.h"

namespace q7x2 {

class Membership;

class CallAgreement {
 public:
  /// What the agreement needs of the group and of the process.
  class Environment {
   public:
    virtual ~Environment() = default;
    /// The group has neither failed nor been left.
    virtual bool is_usable(Locked& locked) const = 0;
    /// Ends the group.
    virtual void fail(Locked& locked, const Error& error) = 0;
    /// Collectives that have failed alone. Nothing is expected of them.
    virtual const FailedCalls& failed_calls(Locked& locked) const = 0;
    /// The group's tasks that are not over, those included that wait for their turn.
    virtual std::vector<std::shared_ptr<Task>> unfinished(Locked& locked) = 0;
    /// Whether a thread of the program waits for a task of the group.
    virtual bool is_waited_for() const = 0;
    /// Whether `rank` lives and has not left.
    virtual bool is_member(Locked& locked, int rank) const = 0;
    /// False: `rank` cannot be reached.
    virtual bool connect(Locked& locked, int rank) = 0;
    virtual Control control_to(int rank, ControlType type) const = 0;
    virtual void send(Locked& locked, int rank, const Control& control) = 0;
    /// See GroupMessages.
    virtual void find_unexpected(Locked& locked,
                                 const std::function<bool(uint64_t tag, int sender)>& visit) = 0;
    /// What collective number `sequence` was, as far as the flight recorder knows; else empty.
    virtual std::string call_text(Locked& locked, uint64_t sequence) const = 0;
    /// What is known of the life of a rank that is late: "its host answers". It may be empty.
    virtual std::string life_of(Locked& locked, int rank) const = 0;
    /// The rank because of which the program does not go on in another group; -1: no rank of this
    /// one, as far as this is known.
    virtual int awaited_elsewhere(Locked& locked) const = 0;
  };

  /// The arguments must outlive it.
  CallAgreement(Environment& environment, const Membership& members, const TurnQueue& turns)
      : environment_(environment), members_(members), turns_(turns) {}
  CallAgreement(const CallAgreement&) = delete;
  CallAgreement& operator=(const CallAgreement&) = delete;

  // For collectives.

  /// What collective number `sequence` is, for ranks that ask: they must agree on `fingerprint`.
  void remember(Locked&, uint64_t sequence, uint64_t fingerprint) {
    calls_[sequence % kRemembered] = fingerprint;
  }
  /// For a collective that has all that it waited for: whether there is a message that no receive
  /// was ever posted for, of this collective or one before. Its sender called something else; the
  /// group fails as after `disagree`. With others in progress the one that is complete last asks,
  /// and housekeeping before that.
  bool finds_leftover(Locked& locked) {
    return turns_.num_running() == 1 && finds_leftover(locked, turns_.num_begun());
  }
  /// A message of `peer` is not what `task`, a collective, expects. The group fails as soon as the
  /// peer has said what it called instead, or without its answer soon after.
  void disagree(Locked& locked, Task& task, int peer) {
    ask_what_it_called(locked, peer, task.record(locked).sequence);
  }

  // Who is late.

  /// Who keeps a task waiting, for a person: "; rank 3 (pid 41 on host a) is late: its host
  /// answers". `rank` is -1 unless it is one rank.
  using Lateness = TaskHost::Lateness;
  Lateness lateness(Locked& locked, Task& task);
  /// While the group is made: this rank waits for `rank`, so its calls are late because of that
  /// one; -1: it does not wait.
  void set_awaited(Locked& locked, int rank);
  /// Asks `rank`, for which this process waits elsewhere, whom it waits for itself.
  void ask_whom_it_awaits(Locked& locked, int rank);
  /// Who keeps `rank` waiting, as it has said since then, for a person: "; rank 1 (pid 41 on host
  /// a) of group 'default_pg' is late: its host answers". Empty: nobody, as far as it has said.
  std::string late_behind(Locked& locked, int rank, TimePoint since) const;
  /// The rank because of which the program does not go on in this group; -1: none, as far as this
  /// is known.
  int awaited_rank(Locked& locked) const;

  // For the group.

  /// When a task that begins now asks first whom it waits for.
  static TimePoint first_inquiry(const Task& task);
  /// A message from `sender` has come that no receive was posted for. False: none will be.
  bool hear_unexpected(Locked& locked, uint64_t tag, int sender);
  void hear_inquiry(Locked& locked, const Control& inquiry);
  void hear_answer(Locked& locked, const Control& answer);
  /// Now and then: looks whether the ranks disagree, asks, and warns.
  void housekeep(Locked& locked, TimePoint now);

 private:
  /// How many collectives back a message is recognised as one that was never received.
  static constexpr uint64_t kLeftoverWindow = 256;
  static constexpr uint64_t kRemembered = TurnQueue::kMostAhead + kLeftoverWindow;
  /// What an inquiry of a message carries as the number of a collective.
  static constexpr uint64_t kNoCall = ~uint64_t{0};
  /// How long after an inquiry of a message the next one follows, at least.
  static constexpr std::chrono::milliseconds kAsksAgain{400};
  /// How long an answer takes at most from a process that runs, on a busy machine.
  static constexpr std::chrono::milliseconds kAnswerTakes{500};

  // call_agreement.cpp: whether all ranks make the same calls.
  bool finds_leftover(Locked& locked, uint64_t oldest);
  bool is_leftover(Locked& locked, uint64_t tag, int sender, uint64_t oldest);
  void inquire(Locked& locked, TimePoint now);
  /// Of a call that has asked and has `waited` so long. `will_answer`: a rank is asked already and
  /// may still answer.
  static Clock::duration until_next_inquiry(const Task& task, Clock::duration waited,
                                            bool will_answer);
  /// False: the rank is not asked, because it owes enough answers.
  bool ask(Locked& locked, int rank, uint64_t sequence, const std::string& call);
  void send_inquiry(Locked& locked, int rank, uint64_t sequence, const std::string& call);
  void ask_what_it_called(Locked& locked, int rank, uint64_t sequence);
  std::string call_name(Locked& locked, uint64_t sequence) const;
  Error disagreement(int a, const std::string& what_a_did, int b,
                     const std::string& what_b_did) const;
  std::string what_it_did(Locked& locked, uint64_t sequence) const;

  // call_lateness.cpp: who keeps the others waiting.
  std::set<int> awaited_ranks(Locked& locked, Task& task) const;
  std::set<int> late_ranks(Locked& locked, Task& task) const;
  const HeardProgress* heard_of(Locked& locked, Task& task, int rank) const;
  std::string why_late(Locked& locked, Task& task, int rank) const;
  CallProgress own_progress(Locked& locked, uint64_t sequence) const;
  void reply(Locked& locked, int rank, uint64_t sequence);
  void correct_answers(Locked& locked);
  void warn_of_late(Locked& locked, TimePoint now);

  Environment& environment_;
  const Membership& members_;
  const TurnQueue& turns_;
  std::array<uint64_t, kRemembered> calls_{};  // fingerprints of the last ones
  std::optional<Disagreement> disagreement_;
  int awaited_ = -1;  // see set_awaited
  TimePoint awaited_since_{};
  TimePoint next_awaited_inquiry_{};
  std::map<int, HeardProgress> heard_;              // by rank: its last answer about a collective
  std::map<int, HeardProgress> heard_of_messages_;  // by rank: its last answer about messages
  std::map<int, UnansweredInquiries> unanswered_;   // by rank: what it has not answered since
  std::map<int, CallProgress> told_;                // by rank: the last answer to it
  TimePoint next_warning_look_{};
  TimePoint next_warning_{};
};

}  // namespace q7x2
