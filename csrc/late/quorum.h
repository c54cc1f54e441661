// Quorum: closes one step after the other with the ranks that are present; the other ranks find it
// closed.
//
// In each step every rank sends its contribution to all others. When enough have arrived, the ranks
// vote which of them count (late/vote.h), and each rank adds these up itself, in the order of the
// ranks. So all ranks have the same bits, and no single rank is needed by all others:
//
//   rank 0   contribution ---- PROPOSE {0,1,2} -- ACCEPT -- decided: sum of 0, 1, 2
//   rank 1   contribution ------------------------ ACCEPT -- decided: sum of 0, 1, 2
//   rank 2   contribution ------------------------ ACCEPT -- decided: sum of 0, 1, 2
//   rank 3   (stopped) ............................................ ASK: the step is closed
//
// A rank that is far behind asks another rank for its state (WANT, STATE). It gets the state right
// after a step was closed, so both begin the next one together; or at once, if a step does not have
// enough ranks.
//
// A rank sends contributions only to ranks from which it has received a message since the last step
// but one, and one at a time. So the number of messages that wait for a stopped rank is bounded. A
// rank may stop before all others have its contribution. If a proposal contains it, the proposer
// passes it on (NEED), when it has been missing for longer than contributions usually take.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "late/messenger.h"
#include "late/vote.h"

namespace q7x2 {

/// Too few ranks took part in time. The step can be repeated.
class QuorumTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Quorum {
 public:
  /// The integers of a message, in order.
  struct Header {
    /// `kind`: a kind of Ballot, or one of these.
    enum Kind : int64_t {
      kContribution = 11,  ///< has a payload
      kAsk = 12,           ///< the sender waits for the end of its step
      kDecided = 13,       ///< the value of a step
      kNeed = 14,          ///< the sender lacks the contributions of the mask
      kWant = 15,          ///< the sender is behind and needs a state
      kState = 16,         ///< has a payload: the state before the step
      kDone = 17,          ///< the sender takes part in no later step
    };
    int64_t kind = 0;
    int64_t step = 0;       ///< the step that the message belongs to
    int64_t at = 0;         ///< the sender's own step
    int64_t origin = 0;     ///< the rank whose contribution is in the payload
    int64_t ballot = 0;     ///< its number
    int64_t accepted = -1;  ///< the ballot in which the value was accepted; -1: none
    int64_t mask = 0;       ///< ranks, one bit each
    int64_t leader = 0;  ///< the rank that proposed the mask; with a state, the leader of the step
    int64_t weight = 0;  ///< the bits of a contribution's weight
  };
  static constexpr size_t kWidth = sizeof(Header) / sizeof(int64_t);

  /// In seconds.
  struct Timing {
    double grace = 0;     ///< how long the leader waits for more than enough contributions
    double takeover = 0;  ///< how long ranks with enough contributions wait for the leader
    double timeout = 0;   ///< how long a rank waits for the end of a step
  };

  /// What one rank contributes to a step.
  struct Contribution {
    Bytes data;
    double weight = 0;
  };

  /// How a step ended.
  struct Closed {
    int64_t mask = 0;                           ///< the ranks that count; 0 if there is a state
    std::map<int, Contribution> contributions;  ///< those of the mask, by rank
    std::optional<Bytes> state;  ///< the state of another rank, from which this rank continues
    int64_t step = 0;            ///< the next step
  };

  struct Settings {
    size_t least_bytes = 0;  ///< minimum size of a contribution
    size_t most_bytes = 0;
    /// Whether the contributions of a mask are enough to close a step.
    std::function<bool(int64_t mask)> is_enough;
    /// Returns the state for a rank that is behind.
    std::function<Bytes()> state;
  };

  /// All ranks make it together. `mail`: its headers must have `kWidth` integers.
  Quorum(std::shared_ptr<Messenger> mail, Settings settings);

  int64_t step() const { return step_; }
  /// Begins with this step, equal on all ranks. Throws after the first message was sent.
  void resume(int64_t step);
  void set_timing(Timing timing) { timing_ = timing; }

  /// Takes part in the current step until it is closed. Throws QuorumTimeout, or the Error of a
  /// failed group.
  Closed close(Contribution mine);
  /// Helps to close the current step without a contribution; throws the same. Nothing if there are
  /// not enough contributions after `patience` seconds, so the others may need this rank's.
  std::optional<Closed> follow(double patience) { return take_part(patience); }
  /// Gives this rank's state to ranks that are behind, if it is this rank's turn. To be called
  /// after the result of a step is applied.
  void serve();
  /// Waits until all ranks have called it, and helps those that are behind. Throws the same.
  void finish();

 private:
  // The times, by `now()`, that decide what a rank does in a step.
  struct Wait;

  std::optional<Closed> take_part(double patience);

  // Does what is due at this time.
  void act(Wait& wait);
  void catch_up(Wait& wait, double now);
  void lead(Wait& wait, double now, int turn);
  void ask();
  void ask_for_contributions(Wait& wait, double now);
  int64_t furthest() const;

  // Messages.
  int64_t held() const;
  bool is_enough(int64_t mask);
  void receive(double seconds);
  /// Seconds of the clock of `Timing`.
  static double now();
  std::vector<int> peers_without(const std::function<bool(int)>& holds) const;
  void hear(const PeerMessage& message);
  void hear_ask(int sender, int64_t step);
  void hear_ballot(const Header& head, const PeerMessage& message);
  void take(const Header& head, const PeerMessage& message);
  void offer();
  void give_state();
  void give(int peer, int64_t step, int origin, const Contribution& what);
  void say(const Vote::Ballots& ballots);
  void post(int peer, const Header& header, const Bytes& payload = {});

  // These go on to the next step.
  Closed advance(VoteValue value);
  Closed jump();
  void begin(int64_t step, int leader);

  const std::shared_ptr<Messenger> mail_;
  const Settings settings_;
  Timing timing_;
  int64_t step_ = 0;
  Vote vote_;
  std::map<int64_t, VoteValue> decided_;  // by step
  // By step and rank: contributions to this step, and early ones to the next.
  std::map<std::pair<int64_t, int>, Contribution> contributions_;
  std::vector<PeerMessage> early_;         // messages of the next step's vote
  std::map<int64_t, Contribution> own_;    // by step: this one and the last
  std::map<int64_t, std::set<int>> sent_;  // by step: the ranks to which it was sent
  std::map<int, int64_t> heard_;           // by rank: the latest step that it has named
  double begun_;                           // when this rank began the step
  std::deque<double> delays_{0.0};  // how long contributions took since the start of their step
  std::map<int, int64_t> need_;     // by rank: contributions to this step that it is missing
  std::set<int> wanting_;
  struct State {
    int64_t step;
    int leader;
    Bytes data;
  };
  std::optional<State> arrived_;
  std::set<int> done_;
  bool has_begun_ = false;
  bool is_done_ = false;
  std::optional<std::pair<int64_t, bool>> enough_;  // a mask, and whether it is enough
};

}  // namespace q7x2
