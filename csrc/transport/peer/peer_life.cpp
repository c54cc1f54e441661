#include "transport/peer/peer_life.h"

#include <utility>

namespace q7x2 {

std::chrono::milliseconds PeerLife::grace(Evidence evidence) {
  switch (evidence) {
    case Evidence::kProcessEnded:
      return std::chrono::milliseconds(5);
    case Evidence::kEndedElsewhere:
    case Evidence::kConnectionBroke:
    case Evidence::kPathFromBlocked:
    case Evidence::kShmBlocked:
    case Evidence::kGivenUp:
      return std::chrono::milliseconds(40);
    case Evidence::kSilent:
    case Evidence::kPathToBlocked:
    case Evidence::kRenewed:
    case Evidence::kLate:
      return std::chrono::milliseconds(0);
  }
  return std::chrono::milliseconds(0);
}

void PeerLife::reach() {
  if (process_ == Process::kUnseen) process_ = Process::kRunning;
}

bool PeerLife::advance(Evidence evidence) {
  const bool ends = evidence == Evidence::kProcessEnded || evidence == Evidence::kEndedElsewhere;
  if (has_ended() || (!ends && (evidence != Evidence::kShmBlocked || is_shm_blocked()))) {
    return false;
  }
  process_ = !ends ? Process::kShmBlocked : was_seen() ? Process::kEnded : Process::kEndedUnseen;
  return true;
}

bool PeerLife::suspect(TimePoint now, Evidence evidence, std::string reason) {
  const bool is_news = advance(evidence);
  const TimePoint dies_at = now + grace(evidence);
  if (is_dead() || (is_suspect() && dies_at >= dies_at_)) return is_news;
  connection_ = Connection::kSuspect;
  evidence_ = evidence;
  dies_at_ = dies_at;
  reason_ = std::move(reason);
  return true;
}

bool PeerLife::declare_dead() {
  if (!is_suspect()) return false;
  connection_ = Connection::kDead;
  return true;
}

PeerLife PeerLife::next() const {
  PeerLife life;
  if (is_shm_blocked()) life.process_ = Process::kShmBlocked;
  return life;
}

bool PeerLife::must_give_notice() const {
  const bool peer_knows = is_lost_by(Evidence::kGivenUp) || is_lost_by(Evidence::kRenewed) ||
                          is_lost_by(Evidence::kShmBlocked) ||
                          is_lost_by(Evidence::kPathFromBlocked);
  return !is_alive() && !has_ended() && !peer_knows;
}

}  // namespace q7x2
