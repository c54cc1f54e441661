// Peer: one incarnation of the connection to another process.
#pragma once

#include <cstdint>

#include "base/ip_address.h"
#include "transport/peer/peer_info.h"
#include "transport/peer/peer_life.h"
#include "transport/ucx/link.h"
#include "transport/ucx/request.h"

namespace q7x2 {

class PeerTable;
class StreamPath;

/// Guarded by the reactor's lock.
struct Peer {
  PeerTable* table = nullptr;
  PeerInfo info;
  uint32_t incarnation = 0;
  /// How many connections on one path this end has opened.
  struct Opened {
    uint32_t before = 0;  ///< in incarnations before this one
    bool now = false;     ///< in this incarnation

    uint32_t all() const { return before + (now ? 1 : 0); }
  };
  Opened opened_shared;
  Opened opened_rail;
  bool same_host = false;
  PeerLife life;

  /// A path to the peer; its address identifies it for the LivenessMonitor.
  struct Watched {
    Peer* peer;
    bool is_rail;

    const Link& link() const { return is_rail ? peer->rail : peer->shared; }
  };
  Watched watched_shared{this, false};
  Watched watched_rail{this, true};

  Link shared;             ///< over the network that all hosts share, or UCX's shared memory
  Link rail;               ///< the private link to its host, if there is one
  IpAddress rail_address;  ///< the peer's address on it
  /// Whether groups rely on the private link, so that its failure is a failure of the peer. Before
  /// that it is only a failed attempt.
  bool relies_on_rail = false;
  bool watches_rail = false;

  /// Many connections to its host; null: not open. See StreamPaths.
  StreamPath* stream = nullptr;
  /// Whether a group has found that messages go that way, so that both processes know each other.
  bool relies_on_stream = false;

  Link& link(Wire wire) { return wire == Wire::kPrivate ? rail : shared; }
  Opened& opened(Wire wire) { return wire == Wire::kPrivate ? opened_rail : opened_shared; }
};

}  // namespace q7x2
