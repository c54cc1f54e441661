#include "transport/peer/stream_paths.h"

#include <utility>

namespace q7x2 {

StreamPaths::StreamPaths(Reactor& reactor, const JobSecret& secret, const Identity& self,
                         const std::vector<IpAddress>& addresses, Events events)
    : reactor_(reactor), own_(self.process), choice_(stream_choice()) {
  if (choice_ == StreamChoice::kNever) return;
  StreamLane& lane = reactor_.open_streams(StreamOptions::of_environment(), self, secret);
  lane.listen(addresses);
  lane.on_call(std::move(events.on_call));
  lane.on_failure(std::move(events.on_failure));
}

void StreamPaths::describe(PeerInfo& own) const {
  const StreamLane* const lane = reactor_.streams();
  own.stream_port = lane == nullptr ? uint16_t{0} : lane->port();
  own.streams = choice_;
  own.encrypts_streams = lane != nullptr && lane->encrypts();
}

void StreamPaths::open(Peer& peer, bool begins) {
  StreamLane* const lane = reactor_.streams();
  if (peer.stream != nullptr || lane == nullptr || peer.same_host || peer.info.stream_port == 0) {
    return;
  }
  peer.stream = &lane->open({.identity = peer.info.identity(),
                             .epoch = peer.incarnation,
                             .addresses = {{peer.info.heartbeat_address, peer.info.stream_port}},
                             .calls = own_ < peer.info.process,
                             .begins = begins});
}

void StreamPaths::close(Peer& peer) {
  if (StreamPath* const path = std::exchange(peer.stream, nullptr))
    reactor_.streams()->close(*path);
}

}  // namespace q7x2
