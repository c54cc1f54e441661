#include "transport/peer/stream_paths.h"

#include <utility>
#include <vector>

#include "transport/net/relay_address.h"

namespace q7x2 {

StreamPaths::StreamPaths(Reactor& reactor, const JobSecret& secret, const Identity& self,
                         const std::vector<IpAddress>& addresses, Advertised advertised,
                         Events events)
    : reactor_(reactor),
      own_(self.process),
      secret_(secret),
      choice_(stream_choice()),
      advertised_(std::move(advertised)),
      relay_(relay_of_environment()) {
  if (choice_ == StreamChoice::kNever) return;
  StreamLane& lane = reactor_.open_streams(StreamOptions::of_environment(), self, secret);
  lane.listen(addresses, advertised_.port);
  lane.on_call(std::move(events.on_call));
  lane.on_failure(std::move(events.on_failure));
  if (relay_) lane.wait_at_relay(*relay_);
}

void StreamPaths::describe(PeerInfo& own) const {
  const StreamLane* const lane = reactor_.streams();
  own.stream_port = lane == nullptr ? uint16_t{0} : lane->port();
  own.streams = choice_;
  own.encrypts_streams = lane != nullptr && lane->encrypts();
  own.behind_nat = advertised_.behind_nat;
  own.outside = advertised_.outside;
  if (lane != nullptr) own.relay = relay_.value_or(IpEndpoint());
}

void StreamPaths::open(Peer& peer, bool begins) {
  StreamLane* const lane = reactor_.streams();
  if (peer.stream != nullptr || lane == nullptr || peer.same_host || peer.info.stream_port == 0) {
    return;
  }
  PeerInfo own;  // whose host is another one
  describe(own);
  const bool is_called = !stream_addresses(peer.info, own).empty();
  std::vector<StreamAddress> addresses;
  for (const IpEndpoint& each : stream_addresses(own, peer.info)) addresses.push_back({each});
  const bool may_be_relayed = are_both_hidden(own, peer.info);
  if (may_be_relayed && peer.info.relay.port != 0) {
    addresses.push_back(
        {peer.info.relay, RelayHello::of(RelayHello::Kind::kCall, secret_, peer.info.identity())});
  }
  const bool calls = !is_called || (!addresses.empty() && own_ < peer.info.process);
  peer.stream = &lane->open({.identity = peer.info.identity(),
                             .epoch = peer.incarnation,
                             .addresses = std::move(addresses),
                             .calls = calls,
                             .begins = begins,
                             .may_be_relayed = may_be_relayed});
}

void StreamPaths::close(Peer& peer) {
  if (StreamPath* const path = std::exchange(peer.stream, nullptr))
    reactor_.streams()->close(*path);
}

}  // namespace q7x2
