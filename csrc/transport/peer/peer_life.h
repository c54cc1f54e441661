// PeerLife: whether a peer is taken to be alive.
//
//   alive --suspect--> suspect --the grace ends--> dead
//
// There is no way back. How long the grace is depends on the evidence. A connection that broke is
// replaced by the peer's next incarnation, and the groups that used it fail. A peer that leaves one
// group in good order stays alive, since it may be in other groups. This class reads no clock.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace q7x2 {

/// Why a peer is suspect.
enum class Evidence {
  kProcessEnded,     ///< a process of this host
  kEndedElsewhere,   ///< a process of another host: that host's kernel says so
  kConnectionBroke,  ///< for whatever reason
  kSilent,           ///< its host has not answered for long
  kBlocked,          ///< its host answers, but data does not get through
};

/// Why a peer is suspect whose data does not get through, at the end that finds it, and at the
/// other.
inline constexpr const char* kPathToIsBlocked =
    "the path for data to it is blocked (firewall or MTU?), its host answers";
inline constexpr const char* kPathFromIsBlocked =
    "the path for data from it is blocked (firewall or MTU?), its host answers";

class PeerLife {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class State { kAlive, kSuspect, kDead };

  /// How long what a suspect peer had sent is still received. What a process of this host wrote to
  /// shared memory is visible when it has ended; its last packets to other hosts may be on their
  /// way a little longer than the news that it ended. A silent host sends nothing, and
  /// what a blocked path holds back was held back for long.
  static constexpr std::chrono::milliseconds grace(Evidence evidence) {
    switch (evidence) {
      case Evidence::kProcessEnded:
        return std::chrono::milliseconds(5);
      case Evidence::kEndedElsewhere:
      case Evidence::kConnectionBroke:
        return std::chrono::milliseconds(40);
      case Evidence::kSilent:
      case Evidence::kBlocked:
        return std::chrono::milliseconds(0);
    }
    return std::chrono::milliseconds(0);
  }

  State state() const { return state_; }
  bool is_alive() const { return state_ == State::kAlive; }
  bool is_suspect() const { return state_ == State::kSuspect; }
  bool is_dead() const { return state_ == State::kDead; }
  /// Why it is not alive.
  const std::string& reason() const { return reason_; }

  /// The evidence by which it dies first counts, and gives the reason. False if that changes
  /// nothing.
  bool suspect(TimePoint now, Evidence evidence, std::string reason) {
    const TimePoint dies_at = now + grace(evidence);
    if (is_dead() || (is_suspect() && dies_at >= dies_at_)) return false;
    state_ = State::kSuspect;
    dies_at_ = dies_at;
    reason_ = std::move(reason);
    return true;
  }
  /// Its grace is over.
  bool is_due(TimePoint now) const { return is_suspect() && now >= dies_at_; }
  /// When it will be, if it is suspect.
  TimePoint dies_at() const { return dies_at_; }
  void die() { state_ = State::kDead; }

 private:
  State state_ = State::kAlive;
  TimePoint dies_at_;
  std::string reason_;
};

}  // namespace q7x2
