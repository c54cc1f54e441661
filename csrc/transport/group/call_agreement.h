// CallAgreement: whether all ranks of a group make the same calls, and which rank keeps the others
// waiting.
//
// If ranks disagree about a message, they find out when the message meets its receive. The
// agreement finds the other cases: a message that no rank receives, and ranks that all wait while
// none sends.
//
// The rank that a call waits for may itself wait for another one. So a rank that has waited for a
// moment sends an inquiry to its peer. The answer says whether the peer has made the call, and
// which rank the peer waits for, in this call or in an earlier one. If a rank's own answer changes,
// it tells the ranks that asked. So the name of the late rank travels along the chain of waiting
// ranks. A rank is late if it does not answer, or if it has not made the call and does not wait
// either. A rank may also stop after it has answered. So it must answer each new inquiry, and newer
// answers of others about it count more than its own old answer.
//
// A message is no call of the whole group. A rank that waits for a message asks its peer again and
// again which rank the peer waits for.
//
// A late rank is not dead. It is first named in a warning, and then in the error of the call whose
// deadline passes.
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
  /// The functions of the group and of the process that the agreement needs.
  class Environment {
   public:
    virtual ~Environment() = default;
    /// Whether the group has neither failed nor been left.
    virtual bool is_usable(Locked& locked) const = 0;
    /// Ends the group.
    virtual void fail(Locked& locked, const Error& error) = 0;
    /// Collectives that have failed alone. No rank waits for them.
    virtual const FailedCalls& failed_calls(Locked& locked) const = 0;
    /// The group's tasks that are not over, including those that wait for their turn.
    virtual std::vector<std::shared_ptr<Task>> unfinished(Locked& locked) = 0;
    /// Whether a thread of the program waits for a task of the group.
    virtual bool is_waited_for() const = 0;
    /// Whether `rank` is alive and has not left.
    virtual bool is_member(Locked& locked, int rank) const = 0;
    /// Returns false if `rank` cannot be reached.
    virtual bool connect(Locked& locked, int rank) = 0;
    virtual Control control_to(int rank, ControlType type) const = 0;
    virtual void send(Locked& locked, int rank, const Control& control) = 0;
    /// See GroupMessages.
    virtual void find_unexpected(Locked& locked,
                                 const std::function<bool(uint64_t tag, int sender)>& visit) = 0;
    /// The name of collective number `sequence`, if the flight recorder has it; otherwise empty.
    virtual std::string call_text(Locked& locked, uint64_t sequence) const = 0;
    /// What is known about a late rank, such as "its host answers". May be empty.
    virtual std::string life_of(Locked& locked, int rank) const = 0;
    /// The rank of this group that keeps the program waiting in another group; -1: none that is
    /// known.
    virtual int awaited_elsewhere(Locked& locked) const = 0;
  };

  /// The arguments must outlive it.
  CallAgreement(Environment& environment, const Membership& members, const TurnQueue& turns)
      : environment_(environment), members_(members), turns_(turns) {}
  CallAgreement(const CallAgreement&) = delete;
  CallAgreement& operator=(const CallAgreement&) = delete;

  // For collectives.

  /// Stores the `fingerprint` of collective number `sequence`, for inquiries. It must be equal on
  /// all ranks.
  void remember(Locked&, uint64_t sequence, uint64_t fingerprint) {
    calls_[sequence % kRemembered] = fingerprint;
  }
  /// For a collective that has all that it waited for: whether there is a message of this
  /// collective or an earlier one that no receive was ever posted for. If so, its sender called
  /// something else, and the group fails as after `disagree`. If several collectives are in
  /// progress, the last one to complete asks; housekeeping asks before that.
  bool finds_leftover(Locked& locked) {
    return turns_.num_running() == 1 && finds_leftover(locked, turns_.num_begun());
  }
  /// A message of `peer` does not match what `task`, a collective, expects. The group fails as soon
  /// as the peer has said what it called instead; without an answer, soon after.
  void disagree(Locked& locked, Task& task, int peer) {
    ask_what_it_called(locked, peer, task.record(locked).sequence);
  }

  // Which ranks are late.

  /// The ranks that keep a task waiting, for an error message: "; rank 3 (pid 41 on host a) is
  /// late: its host answers". `rank` is -1 unless there is exactly one.
  using Lateness = TaskHost::Lateness;
  Lateness lateness(Locked& locked, Task& task);
  /// While the group is being made, this rank waits for `rank`. So if this rank's calls are late,
  /// `rank` is the reason; -1: it does not wait.
  void set_awaited(Locked& locked, int rank);
  /// Asks `rank`, which this process waits for elsewhere, which rank it waits for itself.
  void ask_whom_it_awaits(Locked& locked, int rank);
  /// The rank that keeps `rank` waiting, as `rank` has answered after `since`, for an error
  /// message: "; rank 1 (pid 41 on host a) of group 'default_pg' is late: its host answers". Empty
  /// if it has named none.
  std::string late_behind(Locked& locked, int rank, TimePoint since) const;
  /// The rank that keeps the program waiting in this group; -1: none that is known.
  int awaited_rank(Locked& locked) const;

  // For the group.

  /// When a task that begins now first asks the ranks that it waits for.
  static TimePoint first_inquiry(const Task& task);
  /// A message from `sender` has arrived that no receive was posted for. Returns false if none will
  /// be.
  bool hear_unexpected(Locked& locked, uint64_t tag, int sender);
  void hear_inquiry(Locked& locked, const Control& inquiry);
  void hear_answer(Locked& locked, const Control& answer);
  /// Called now and then: checks whether the ranks disagree, asks, and warns.
  void housekeep(Locked& locked, TimePoint now);

 private:
  /// A message that is never received is recognised only while it is at most this many collectives
  /// old.
  static constexpr uint64_t kLeftoverWindow = 256;
  static constexpr uint64_t kRemembered = TurnQueue::kMostAhead + kLeftoverWindow;
  /// The number of a collective in an inquiry about a message.
  static constexpr uint64_t kNoCall = ~uint64_t{0};
  /// Minimum time between two inquiries about a message.
  static constexpr std::chrono::milliseconds kAsksAgain{400};
  /// The longest time that a running process takes to answer on a busy machine.
  static constexpr std::chrono::milliseconds kAnswerTakes{500};

  // call_agreement.cpp: whether all ranks make the same calls.
  bool finds_leftover(Locked& locked, uint64_t oldest);
  bool is_leftover(Locked& locked, uint64_t tag, int sender, uint64_t oldest);
  void inquire(Locked& locked, TimePoint now);
  /// For a call that has asked after it had waited for `waited`. `will_answer`: a rank that was
  /// asked before may still answer.
  static Clock::duration until_next_inquiry(const Task& task, Clock::duration waited,
                                            bool will_answer);
  /// Returns false if the rank is not asked because too many inquiries to it are unanswered.
  bool ask(Locked& locked, int rank, uint64_t sequence, const std::string& call);
  void send_inquiry(Locked& locked, int rank, uint64_t sequence, const std::string& call);
  void ask_what_it_called(Locked& locked, int rank, uint64_t sequence);
  std::string call_name(Locked& locked, uint64_t sequence) const;
  Error disagreement(int a, const std::string& what_a_did, int b,
                     const std::string& what_b_did) const;
  std::string what_it_did(Locked& locked, uint64_t sequence) const;

  // call_lateness.cpp: which rank keeps the others waiting.
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
  std::array<uint64_t, kRemembered> calls_{};  // fingerprints of the last collectives
  std::optional<Disagreement> disagreement_;
  int awaited_ = -1;  // see set_awaited
  TimePoint awaited_since_{};
  TimePoint next_awaited_inquiry_{};
  std::map<int, HeardProgress> heard_;              // by rank: its last answer about a collective
  std::map<int, HeardProgress> heard_of_messages_;  // by rank: its last answer about messages
  std::map<int, UnansweredInquiries> unanswered_;   // by rank: inquiries since its last answer
  std::map<int, CallProgress> told_;                // by rank: the last answer sent to it
  TimePoint next_warning_look_{};
  TimePoint next_warning_{};
};

}  // namespace q7x2
