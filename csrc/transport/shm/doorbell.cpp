#include "transport/shm/doorbell.h"

namespace q7x2 {

void Doorbell::wake(Locked& locked, int member) {
  if (!channel_.must_wake(member)) return;
  if (Peer* const peer = reachable(member)) controls_.wake(locked, *peer);
}

void Doorbell::notify(Locked& locked, int member) {
  if (!channel_.must_ring(member)) {
    wake(locked, member);
  } else if (Peer* const peer = reachable(member)) {
    controls_.notify(locked, *peer, resident(member).slot);
  }
}

Peer* Doorbell::reachable(int member) const {
  Peer& peer = *resident(member).peer;
  return peer.shared.is_open() && peer.life.is_alive() ? &peer : nullptr;
}

}  // namespace q7x2
