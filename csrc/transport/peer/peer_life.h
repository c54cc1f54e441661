// PeerLife: what this process knows of the life of a peer, as two state machines.
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
// "-" changes nothing: no event revives a connection that is dead, or a process that has ended. A
// dead connection can still learn that its process has ended. A connection that broke is replaced
// by the peer's next incarnation (`next`), and the groups that used it fail. A peer that leaves a
// group in good order stays alive, since it may be in other groups.
//
// A suspect is not dead at once: what it had sent is received first. How long that grace is depends
// on the evidence. This class reads no clock.
#pragma once

#include <chrono>
#include <string>

namespace q7x2 {

/// Why a peer is suspect.
enum class Evidence {
  kProcessEnded,     ///< it was a process of this host, and the kernel says that it has ended
  kEndedElsewhere,   ///< the same of another host
  kConnectionBroke,  ///< UCX says so
  kSilent,           ///< its host has not answered for long
  kPathToBlocked,    ///< its host answers, but data to it does not get through
  kPathFromBlocked,  ///< it has given notice that data from it does not get through
  kShmBlocked,       ///< it has given notice that it receives nothing from its host any more
  kGivenUp,          ///< it has given notice that the connection broke
  kRenewed,          ///< it uses the next incarnation of the connection already
  kLate,             ///< this process gives up the connection, because the peer is late
};

class PeerLife {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Connection { kAlive, kSuspect, kDead };
  enum class Process { kUnseen, kRunning, kShmBlocked, kEndedUnseen, kEnded };

  /// How long what a suspect had sent is still received. What a process of this host wrote to
  /// shared memory is visible when it has ended; its last packets to other hosts may be on their
  /// way a little longer than the news that it ended. A silent host sends nothing, and what a
  /// blocked path holds back was held back for long.
  static std::chrono::milliseconds grace(Evidence evidence);

  // Events.

  /// The process runs.
  void reach();
  /// `reason`: completes "rank 3 failed: ...". The evidence by which it dies first counts, and
  /// gives the reason. False: that changes neither the connection nor the process.
  bool suspect(TimePoint now, Evidence evidence, std::string reason);
  /// Its connection is not used any more. False: it is no suspect.
  bool declare_dead();
  /// The life of the next connection to the same process.
  PeerLife next() const;

  // The connection.

  Connection connection() const { return connection_; }
  bool is_alive() const { return connection_ == Connection::kAlive; }
  bool is_suspect() const { return connection_ == Connection::kSuspect; }
  bool is_dead() const { return connection_ == Connection::kDead; }
  /// Its grace is over.
  bool is_due(TimePoint now) const { return is_suspect() && now >= dies_at_; }
  /// When it will be, if it is suspect.
  TimePoint dies_at() const { return dies_at_; }
  /// Why it is not alive.
  const std::string& reason() const { return reason_; }
  /// It is not alive, and by this evidence.
  bool is_lost_by(Evidence evidence) const { return !is_alive() && evidence_ == evidence; }
  /// It is not alive, and the peer must be told: it may not know.
  bool must_give_notice() const;

  // The process.

  Process process() const { return process_; }
  /// There is nothing to connect to.
  bool has_ended() const { return process_ >= Process::kEndedUnseen; }
  /// It ran after this process had met it.
  bool was_seen() const {
    return process_ != Process::kUnseen && process_ != Process::kEndedUnseen;
  }
  /// It receives nothing from its host any more: see QueueWatch.
  bool is_shm_blocked() const { return process_ == Process::kShmBlocked; }

 private:
  /// False: it has not changed.
  bool advance(Evidence evidence);

  Connection connection_ = Connection::kAlive;
  Process process_ = Process::kUnseen;
  Evidence evidence_{};
  TimePoint dies_at_;
  std::string reason_;
};

}  // namespace q7x2
