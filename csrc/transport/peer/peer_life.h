// PeerLife: what this process knows about whether a peer is alive, as two state machines.
//
//   the connection  reach()  suspect(evidence, ...)           declare_dead()
//   --------------  -------  -------------------------------  --------------
//   alive           -        suspect                          -
//   suspect         -        suspect, if it dies sooner by it  dead
//   dead            -        -                                -
//
//   the process     reach()  suspect(kShmBlocked)  suspect(kProcessEnded or kEndedElsewhere)
//   --------------  -------  --------------------  -----------------------------------------
//   unseen          running  shm blocked           ended unseen
//   running         -        shm blocked           ended
//   shm blocked     -        -                     ended
//   ended unseen    -        -                     -
//   ended           -        -                     -
//
// "-" changes nothing: no event revives a dead connection, or a process that has ended. A dead
// connection can still learn that its process has ended. A connection that broke is replaced by the
// peer's next incarnation (`next`), and the groups that used it fail. A peer that leaves a group in
// good order stays alive, since it may be in other groups.
//
// A suspect is not declared dead at once: first, what it had sent is received. The length of this
// grace period depends on the evidence. This class reads no clock.
#pragma once

#include <chrono>
#include <string>

namespace q7x2 {

/// Why a peer is suspect.
enum class Evidence {
  kProcessEnded,     ///< a process of this host; the kernel says that it has ended
  kEndedElsewhere,   ///< a process of another host; its kernel says that it has ended
  kConnectionBroke,  ///< UCX says so
  kSilent,           ///< its host has not answered for long
  kPathToBlocked,    ///< its host answers, but data does not reach it
  kPathFromBlocked,  ///< its break notice says that data from it does not arrive
  kShmBlocked,       ///< its break notice says that shared memory brings no messages to it any more
  kGivenUp,          ///< it says that the connection broke
  kRenewed,          ///< it already uses the next incarnation of the connection
  kLate,             ///< this process gives up the connection, because the peer is late
};

class PeerLife {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Connection { kAlive, kSuspect, kDead };
  enum class Process { kUnseen, kRunning, kShmBlocked, kEndedUnseen, kEnded };

  /// How long messages that a suspect had sent are still received. When a process of this host has
  /// ended, what it wrote to shared memory is visible; its last packets to other hosts may arrive a
  /// little later than the news that it ended. A silent host sends nothing, and data on a blocked
  /// path has already been held back for long.
  static std::chrono::milliseconds grace(Evidence evidence);

  // Events.

  /// The process runs.
  void reach();
  /// `reason`: completes "rank 3 failed: ...". If there are several suspicions, the one by which it
  /// dies first counts and gives the reason. Returns false if this changes neither state.
  bool suspect(TimePoint now, Evidence evidence, std::string reason);
  /// The connection will not be used any more. Returns false if it is not suspect.
  bool declare_dead();
  /// The state of the next connection to the same process.
  PeerLife next() const;

  // The connection.

  Connection connection() const { return connection_; }
  bool is_alive() const { return connection_ == Connection::kAlive; }
  bool is_suspect() const { return connection_ == Connection::kSuspect; }
  bool is_dead() const { return connection_ == Connection::kDead; }
  /// Whether its grace period is over.
  bool is_due(TimePoint now) const { return is_suspect() && now >= dies_at_; }
  /// When its grace period ends, if it is suspect.
  TimePoint dies_at() const { return dies_at_; }
  /// Why it is not alive.
  const std::string& reason() const { return reason_; }
  /// Whether it is suspect or dead by this evidence.
  bool is_lost_by(Evidence evidence) const { return !is_alive() && evidence_ == evidence; }
  /// Whether it is suspect or dead and the peer must be told, because it may not know.
  bool must_give_notice() const;

  // The process.

  Process process() const { return process_; }
  /// Whether the process has ended, so that there is nothing to connect to.
  bool has_ended() const { return process_ >= Process::kEndedUnseen; }
  /// Whether the process ran after this process had met it.
  bool was_seen() const {
    return process_ != Process::kUnseen && process_ != Process::kEndedUnseen;
  }
  /// Whether shared memory brings no messages to it any more: see QueueWatch.
  bool is_shm_blocked() const { return process_ == Process::kShmBlocked; }

 private:
  /// Returns false if the state has not changed.
  bool advance(Evidence evidence);

  Connection connection_ = Connection::kAlive;
  Process process_ = Process::kUnseen;
  Evidence evidence_{};
  TimePoint dies_at_;
  std::string reason_;
};

}  // namespace q7x2
