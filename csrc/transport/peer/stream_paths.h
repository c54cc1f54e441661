// StreamPaths: the paths of the StreamLane to other processes, one for each incarnation of a Peer.
//
// A path is opened by the side that first has a message for the other, or waits for one; the other
// side opens its end when it is called. So pairs that do not talk have no connections.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "transport/peer/peer.h"
#include "transport/stream/stream_lane.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class StreamPaths {
 public:
  using OnFailure = std::function<void(Peer& peer, const std::string& why)>;

  /// Makes the reactor's lane, which listens at `addresses`, unless Q7X2_STREAMS says never.
  /// `self`: this process. `find`: the newest incarnation of a process; null: it is not known.
  /// `on_failure`: the path to a peer has failed; it may not be closed from inside of this.
  /// Throws Error(kTransport), and Error(kInvalidArgument) for what the environment says.
  StreamPaths(Reactor& reactor, const JobSecret& secret, const Identity& self,
              const std::vector<IpAddress>& addresses, std::function<Peer*(uint64_t)> find,
              const OnFailure& on_failure);
  StreamPaths(const StreamPaths&) = delete;
  StreamPaths& operator=(const StreamPaths&) = delete;

  /// Says in the peer info of this process what its lane does; the environment may say something
  /// else by now.
  void describe(PeerInfo& own) const;
  /// Nothing happens if one of the two has no lane. `begins`: this side has a message, or waits.
  void open(Peer& peer, bool begins);
  void close(Peer& peer);

 private:
  Reactor& reactor_;
  const uint64_t own_;
  const StreamChoice choice_;
  const std::function<Peer*(uint64_t)> find_;
};

}  // namespace q7x2
