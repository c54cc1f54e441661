// Vote: how the ranks agree which contributions count in a step, even if any minority is stopped.
//
// It is single-decree Paxos (Lamport, "Paxos made simple", 2001), once per step. The value is the
// set of contributions. A rank accepts a value only when it holds all contributions of the set, so
// a majority can compute the result of every value that may be chosen:
//
//   leader        PROPOSE ballot 0, ranks {0, 1, 3} --> all
//   each rank     ACCEPT ballot 0 --> all                 once it holds the three contributions
//   each rank     decided                                 once a majority has accepted the ballot
//
// The leader of a step is the rank that proposed the value of the previous step, so its ballot 0
// needs no preparation. If it is stopped, another rank takes over with a higher ballot: it asks a
// majority which value they have accepted (PREPARE, PROMISE), and proposes that value; if there is
// none, it proposes the contributions that it holds itself.
//
// It uses no I/O and no clock. Messages may be lost, repeated and reordered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace q7x2 {

/// The value of a decision.
struct VoteValue {
  int64_t mask = 0;    ///< the contributions that count, one bit per rank
  int64_t leader = 0;  ///< the leader of the next step

  auto operator<=>(const VoteValue&) const = default;
};

/// A message of a vote.
struct Ballot {
  static constexpr int kAll = -1;
  enum class Kind { kPropose = 1, kAccept = 2, kPrepare = 3, kPromise = 4 };

  Kind kind{};
  int64_t ballot = 0;
  /// proposed or accepted value; in a promise: the value accepted at `accepted`
  VoteValue value{};
  int to = kAll;          ///< the receiver
  int64_t accepted = -1;  ///< in a promise: the ballot of the value; -1: none

  bool operator==(const Ballot&) const = default;
};

/// One rank's part in the vote of one step.
class Vote {
 public:
  using Ballots = std::vector<Ballot>;
  using Proposal = std::pair<int64_t, VoteValue>;  // the ballot and its value

  /// `leader`: the only rank that may propose without preparation; equal on all ranks.
  Vote(int rank, int world_size, int leader)
      : rank_(rank), world_size_(world_size), leader_(leader) {}

  int leader() const { return leader_; }
  size_t majority() const { return static_cast<size_t>(world_size_) / 2 + 1; }
  /// The value, once this rank knows it. It is equal on all ranks that know one.
  const std::optional<VoteValue>& decided() const { return decided_; }
  void decide(VoteValue value) { decided_ = value; }
  /// The value that this rank will accept as soon as it can.
  const std::optional<Proposal>& proposal() const { return proposal_; }
  /// The rank that holds the contributions of the proposal.
  int source() const { return source_; }

  // Each returns the messages that the rank must send. `held`: the contributions that it holds.

  /// As the leader, proposes the contributions that this rank holds; nothing if it already has.
  Ballots lead(int64_t held);
  /// Prepares a ballot that is higher than all that this rank knows.
  Ballots take_over();
  Ballots hear(int sender, const Ballot& message, int64_t held);
  /// Accepts the proposal, if this rank now holds all of its contributions.
  Ballots accept(int64_t held);
  /// The messages that a rank may have missed.
  Ballots repeat(int to) const;

 private:
  Ballots propose(VoteValue value, int source);
  Ballots promise(int sender, const Ballot& message, int64_t held);
  void count(int rank, int64_t ballot, VoteValue value);

  int rank_;
  int world_size_;
  int leader_;
  std::optional<VoteValue> decided_;
  std::optional<Proposal> proposal_;
  int source_ = -1;
  int64_t promised_ = 0;
  std::optional<Proposal> accepted_;
  std::map<int64_t, std::set<int>> accepts_;  // by ballot: the ranks
  int64_t mine_ = -1;                         // the ballot that this rank has prepared or proposed
  std::map<int, Proposal> promises_;          // by rank
  std::optional<VoteValue> proposed_;
};

}  // namespace q7x2
