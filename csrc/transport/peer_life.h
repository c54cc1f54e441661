// PeerLife: whether a peer is taken to be alive.
//
//   alive --suspect--> suspect --the grace ends--> dead
//
// There is no way back. A connection that broke is replaced by the peer's next incarnation, and the
// groups that used it fail. A peer that leaves one group in good order stays alive, since it may be
// in other groups. This class reads no clock.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace q7x2 {

class PeerLife {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class State { kAlive, kSuspect, kDead };

  /// How long what a suspect peer had sent is still received.
  static constexpr std::chrono::milliseconds kGrace{50};

  State state() const { return state_; }
  bool is_alive() const { return state_ == State::kAlive; }
  bool is_suspect() const { return state_ == State::kSuspect; }
  bool is_dead() const { return state_ == State::kDead; }
  /// Why it is not alive.
  const std::string& reason() const { return reason_; }

  /// False if it was suspect or dead already; the first reason stays.
  bool suspect(TimePoint now, std::string reason) {
    if (!is_alive()) return false;
    state_ = State::kSuspect;
    dies_at_ = now + kGrace;
    reason_ = std::move(reason);
    return true;
  }
  /// Its grace is over.
  bool is_due(TimePoint now) const { return is_suspect() && now >= dies_at_; }
  void die() { state_ = State::kDead; }

 private:
  State state_ = State::kAlive;
  TimePoint dies_at_;
  std::string reason_;
};

}  // namespace q7x2
