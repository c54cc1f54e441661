// The paths of many connections of a PeerTable.
#include <string>

#include "transport/peer/peer_table.h"

namespace q7x2 {

StreamPaths::Events PeerTable::stream_events() {
  return {.on_call =
              [this](uint64_t process, uint64_t epoch) {
                return answer_call(reactor_.lock().held(), process, epoch);
              },
          .on_failure =
              [this](const StreamPath& path) {
                Locked& locked = reactor_.lock().held();
                Peer* const peer = find(locked, path.target().identity.process);
                if (peer != nullptr && peer->stream == &path) suspect_stream(locked, *peer);
              }};
}

void PeerTable::suspect_stream(Locked& locked, Peer& peer) {
  if (peer.stream->counts().connections_made > 0) peer.life.reach();
  const Evidence evidence =
      peer.stream->fault() == StreamPath::Fault::kEnded     ? Evidence::kEndedElsewhere
      : peer.stream->fault() == StreamPath::Fault::kSilent  ? Evidence::kSilent
      : peer.stream->fault() == StreamPath::Fault::kGivenUp ? Evidence::kGivenUp
                                                            : Evidence::kConnectionBroke;
  suspect(locked, peer, peer.stream->failure(), evidence);
}

bool PeerTable::connect_stream(Locked& locked, Peer& peer) {
  if (peer.stream == nullptr && peer.life.is_alive()) open_stream(peer, /*begins=*/true);
  if (peer.stream == nullptr) return false;
  const bool has_failed = !peer.stream->failure().empty();
  if (has_failed) suspect_stream(locked, peer);
  return !has_failed;
}

void PeerTable::open_stream(Peer& peer, bool begins) {
  streams_.open(peer, begins);
  if (peer.stream == nullptr) return;
  peer.stream->watch();
  monitor_.forget(&peer.watched_shared);
}

CallFate PeerTable::answer_call(Locked& locked, uint64_t process, uint64_t epoch) {
  Peer* peer = find(locked, process);
  // Both sides know of a break, and the other one already uses the next incarnation.
  if (peer != nullptr && peer->life.is_dead() && !peer->life.has_ended() &&
      epoch == peer->incarnation + 1) {
    peer = &meet(locked, PeerInfo(peer->info), peer->same_host, peer->incarnation + 1);
  }
  if (peer == nullptr || epoch > peer->incarnation) return CallFate::kWaits;
  if (epoch < peer->incarnation || !peer->life.is_alive()) return CallFate::kGivenUp;
  open_stream(*peer, /*begins=*/false);
  return CallFate::kWaits;
}

}  // namespace q7x2
