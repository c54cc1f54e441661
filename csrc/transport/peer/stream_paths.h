// StreamPaths: the paths of the StreamLane to other processes, one for each incarnation of a Peer.
//
// A path is opened by the side that first has a message for the other, or waits for one; the other
// side opens its end when it is called. So pairs that do not talk have no connections.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "transport/net/advertised.h"
#include "transport/peer/peer.h"
#include "transport/stream/stream_lane.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class StreamPaths {
 public:
  struct Events {
    OnStreamCall on_call;
    /// The path has failed; it may not be closed from inside of this.
    std::function<void(const StreamPath& path)> on_failure;
  };

  /// Makes the reactor's lane, which listens at `addresses`, unless Q7X2_STREAMS says never.
  /// `self`: this process. `advertised`: where it is reached. Throws Error(kTransport), and
  /// Error(kInvalidArgument) for what the environment says.
  StreamPaths(Reactor& reactor, const JobSecret& secret, const Identity& self,
              const std::vector<IpAddress>& addresses, Advertised advertised, Events events);
  StreamPaths(const StreamPaths&) = delete;
  StreamPaths& operator=(const StreamPaths&) = delete;

  /// Says in the peer info of this process what its lane does; the environment may say something
  /// else by now.
  void describe(PeerInfo& own) const;
  /// Nothing happens if one of the two has no lane. `begins`: this side has a message, or waits.
  void open(Peer& peer, bool begins);
  /// PeerInfo::behind_nat of this process.
  bool is_behind_nat() const { return advertised_.behind_nat; }
  void close(Peer& peer);

 private:
  Reactor& reactor_;
  const uint64_t own_;
  const JobSecret secret_;
  const StreamChoice choice_;
  const Advertised advertised_;
  const std::optional<IpEndpoint> relay_;
};

}  // namespace q7x2
