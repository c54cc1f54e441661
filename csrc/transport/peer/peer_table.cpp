#include "transport/peer/peer_table.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "transport/net/silence_limit.h"
#include "transport/quirks/process_limits.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;
using Topic = HeartbeatHello::Topic;

constexpr std::chrono::microseconds kAcknowledgementPause{200};
// At the end: how long a host that was called lately may take to answer for the first time.
constexpr std::chrono::milliseconds kConnecting{10};
constexpr std::chrono::milliseconds kBetweenFiles{100};
// Each is one break that the other end has not noticed.
constexpr int kMostToCatchUp = 1000;

// Why a connection may have failed, for a person.
std::string why_unreachable(const Reactor& reactor, const Peer& peer) {
  if (!can_open_file()) {
    return "this process can open no more files: raise the limit (`ulimit -n`)";
  }
  const std::string both = "UCX may use " + join_list(reactor.transports()) + " here and " +
                           peer.info.transports +
                           " there; this depends on UCX_TLS, which should be "
                           "the same on both sides";
  return both + (peer.same_host ? ", and on the room in /dev/shm"
                                : ", and on UCX_NET_DEVICES, which must name interfaces that lead "
                                  "to the other host");
}

}  // namespace

PeerTable::PeerTable(const JobSecret& secret, const Identity& self,
                     const std::vector<IpAddress>& addresses, Reactor& reactor, OnDeath on_death)
    : secret_(secret),
      reactor_(reactor),
      on_death_(std::move(on_death)),
      detector_(self.process, secret.key_to(self), addresses),
      paths_(silence_limit()) {}

Peer& PeerTable::meet(Locked& locked, const PeerInfo& peer_info, bool same_host,
                      uint32_t incarnation) {
  if (!is_in_memory(peer_info, same_host)) admit(locked, peer_info.addresses(), !same_host);
  auto& slot = peers_[peer_info.process];
  if (slot && slot->incarnation >= incarnation) {
    return *slot;
  }
  Peer::Opened shared;
  Peer::Opened rail;
  const bool is_shm_blocked = slot && slot->is_shm_blocked;
  if (slot) {
    shared.before = slot->opened_shared.all();
    rail.before = slot->opened_rail.all();
    if (!slot->life.is_dead()) {
      // The other end noticed first.
      slot->has_given_up = true;
      suspect(locked, *slot, "its connection broke");
      die(locked, *slot);
    }
    former_.push_back(std::move(slot));
  }
  slot = std::make_unique<Peer>();
  Peer& peer = *slot;
  peer.table = this;
  peer.info = peer_info;
  peer.incarnation = incarnation;
  peer.opened_shared = shared;
  peer.opened_rail = rail;
  peer.same_host = same_host;
  peer.is_shm_blocked = is_shm_blocked;
  peer.shared = Link(reactor_.worker(), peer_info.address);
  if (!same_host) {
    detector_.expect(peer_info.process);
    return peer;
  }
  end_former_lives(locked, peer_info);
  peer.was_seen = detector_.watch_process(peer_info.pid, peer_info.process, &peer.watched_shared);
  if (!peer.was_seen) {
    peer.has_ended = true;
    suspect(locked, peer, "its process has ended", Evidence::kProcessEnded);
  }
  return peer;
}

// A process has one Runtime at a time, which tells nobody when it ends.
void PeerTable::end_former_lives(Locked& locked, const PeerInfo& peer_info) {
  for (const auto& [process, peer] : peers_) {
    if (process == peer_info.process || !peer->same_host || peer->info.pid != peer_info.pid)
      continue;
    peer->has_ended = true;
    suspect(locked, *peer, "its process has left all groups and joined others",
            Evidence::kProcessEnded);
  }
}

Peer* PeerTable::find(Locked&, uint64_t process) {
  const auto found = peers_.find(process);
  return found == peers_.end() ? nullptr : found->second.get();
}

std::vector<PeerInfo::Renewed> PeerTable::renew(Locked& locked) {
  // A death may add and replace peers.
  std::vector<Peer*> suspects;
  for (const auto& [process, peer] : peers_) {
    if (peer->life.is_suspect() && !peer->has_ended) suspects.push_back(peer.get());
  }
  for (Peer* const peer : suspects) {
    if (!peer->life.is_dead()) die(locked, *peer);
  }
  std::vector<PeerInfo::Renewed> connections;
  for (const auto& [process, peer] : peers_) {
    const bool broken = peer->life.is_dead() && !peer->has_ended;
    if (broken || peer->incarnation > 0) {
      const auto opened = [&](const Peer::Opened& path) {
        return broken ? path.all() : path.before;
      };
      connections.push_back({process, peer->incarnation + (broken ? 1 : 0),
                             opened(peer->opened_shared), opened(peer->opened_rail)});
    }
  }
  return connections;
}

void PeerTable::catch_up(Locked&, Peer& peer, Wire wire, uint32_t opened) {
  const auto ignore = [](void*, ucp_ep_h, ucs_status_t) {};
  const Link& link = peer.link(wire);
  Peer::Opened& own = peer.opened(wire);
  for (int i = 0; i < kMostToCatchUp && !own.now && own.before < opened; ++i) {
    try {
      const UcpEndpoint closed_at_once(link.worker(), link.address(), ignore, nullptr);
      ++own.before;
    } catch (const Error&) {
      return;  // opening the one that matters says why
    }
  }
}

bool PeerTable::connect(Locked& locked, Peer& peer) {
  if (!peer.life.is_alive()) {
    return peer.life.is_suspect() && peer.shared.is_open();
  }
  if (peer.shared.is_open()) {
    return true;
  }
  try {
    peer.shared.open(on_shared_error, &peer);
    peer.opened_shared.now = true;
    watch(peer, Wire::kShared);
    return true;
  } catch (const Error& error) {
    suspect(locked, peer, error.what() + (": " + why_unreachable(reactor_, peer)));
    return false;
  }
}

bool PeerTable::connect_rail(Locked&, Peer& peer) {
  try {
    peer.rail.open(on_rail_error, &peer);
    peer.opened_rail.now = true;
  } catch (const Error&) {
    return false;
  }
  if (peer.relies_on_rail && !peer.watches_rail) {
    peer.watches_rail = true;
    watch(peer, Wire::kPrivate);
  }
  return true;
}

void PeerTable::watch(Locked&, Peer& peer) {
  if (peer.life.is_alive()) {
    watch(peer, Wire::kShared, /*believes_refusals=*/true);
  }
}

// A process of this host is watched from the beginning.
void PeerTable::watch(Peer& peer, Wire wire, bool believes_refusals) {
  if (peer.same_host) {
    return;
  }
  const bool is_rail = wire == Wire::kPrivate;
  detector_.watch_host(port_of(peer, is_rail ? Topic::kPrivate : Topic::kShared),
                       is_rail ? &peer.watched_rail : &peer.watched_shared, Clock::now(),
                       believes_refusals);
}

void PeerTable::suspect(Locked&, Peer& peer, std::string reason, Evidence evidence) {
  if (peer.life.suspect(Clock::now(), evidence, std::move(reason))) {
    has_suspects_.store(true, std::memory_order_relaxed);
    num_losses_.fetch_add(1, std::memory_order_release);
  }
}

void PeerTable::cut_off(Locked& locked, Peer& peer, std::string reason) {
  if (!peer.life.is_dead()) {
    peer.was_cut_off = true;
    suspect(locked, peer, std::move(reason));
    die(locked, peer);
  }
}

void PeerTable::declare_dead(Locked& locked, TimePoint now, const std::function<void()>& look) {
  if (!has_suspects()) {
    return;
  }
  // What is received, and what a death leads to, may add and replace peers. Those that are replaced
  // live on in `former_`.
  std::vector<Peer*> due;
  for (const auto& [process, peer] : peers_) {
    if (peer->life.is_due(now)) due.push_back(peer.get());
  }
  for (Peer* const peer : due) {
    if (peer->life.is_dead()) continue;
    look();
    if (!peer->life.is_dead()) die(locked, *peer);
  }
  has_suspects_.store(
      std::ranges::any_of(peers_, [](const auto& each) { return each.second->life.is_suspect(); }),
      std::memory_order_relaxed);
}

PeerTable::TimePoint PeerTable::death_due(Locked&) const {
  TimePoint due = TimePoint::max();
  if (has_suspects()) {
    for (const auto& [process, peer] : peers_) {
      if (peer->life.is_suspect()) due = std::min(due, peer->life.dies_at());
    }
  }
  return due;
}

void PeerTable::die(Locked& locked, Peer& peer) {
  peer.life.die();
  detector_.forget(&peer.watched_shared);
  detector_.forget(&peer.watched_rail);
  detector_.give_up(
      peer.info.process, peer.incarnation,
      peer.is_blocked ? HeartbeatHello::Turn::kBlocked : HeartbeatHello::Turn::kGivenUp);
  if (!peer.has_ended && !peer.has_given_up) {
    detector_.send_break_notice(port_of(peer, peer.is_blocked ? Topic::kBlocked : Topic::kBroken),
                                &peer.watched_shared);
  }
  peer.shared.cut();
  peer.rail.cut();
  on_death_(locked, peer);
}

void PeerTable::look(Locked& locked, TimePoint now) {
  for (FailureDetector::Notice& notice : detector_.look(now)) {
    const auto& watched = *static_cast<Peer::Watched*>(notice.who);
    Peer& peer = *watched.peer;
    if (watched.is_rail) {
      notice.reason += " on the private link";
    }
    peer.was_seen |= notice.was_reached;
    peer.is_silent |= notice.evidence == Evidence::kSilent;
    const bool has_ended =
        notice.evidence == Evidence::kProcessEnded || notice.evidence == Evidence::kEndedElsewhere;
    if (has_ended && !peer.has_ended) {
      peer.has_ended = true;
      num_losses_.fetch_add(1, std::memory_order_release);
    }
    suspect(locked, peer, std::move(notice.reason), notice.evidence);
  }
  hear_notices(locked);
  hear_admission_calls(locked);
  if (now >= next_files_) {
    next_files_ = now + kBetweenFiles;
    reactor_.heed_files(locked);
  }
  watch_paths(locked, now);
}

PeerTable::TimePoint PeerTable::look_due(Locked&) const {
  return detector_.num_heartbeats() == 0 ? detector_.due()
                                         : std::min(detector_.due(), paths_.due());
}

void PeerTable::hear_notices(Locked& locked) {
  for (const HeartbeatHello& notice : detector_.take_notices()) {
    Peer* const peer = find(locked, notice.sender);
    if (peer == nullptr || peer->incarnation != notice.incarnation || peer->life.is_dead()) {
      continue;
    }
    peer->has_given_up = true;
    peer->is_shm_blocked |= notice.topic == Topic::kDeaf;
    if (notice.topic == Topic::kBlocked) {
      suspect(locked, *peer, kPathFromIsBlocked);
      continue;
    }
    suspect(locked, *peer,
            peer->is_shm_blocked
                ? "it no longer receives messages from other processes of its host, "
                  "because one of them was killed while it wrote a message to it"
                : "it has given up the connection to this process");
  }
}

void PeerTable::lose_host(Locked&) {
  for (const auto& [process, peer] : peers_) {
    if (peer->same_host && peer->life.is_alive()) {
      detector_.send_break_notice(port_of(*peer, Topic::kDeaf), &peer->watched_shared);
    }
  }
}

std::string PeerTable::why_late(Locked&, const Peer& peer) const {
  if (peer.same_host) {
    return is_stopped(peer.info.pid) ? "its process is stopped" : "its process is alive";
  }
  return detector_.answers(&peer.watched_shared, Clock::now()) ? "its host answers" : "";
}

void PeerTable::on_shared_error(void* arg, ucp_ep_h, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(arg);
  PeerTable& table = *peer.table;
  table.suspect(table.reactor_.lock().held(), peer,
                std::string("its connection broke (") + ucs_status_string(status) + ")");
}

void PeerTable::on_rail_error(void* arg, ucp_ep_h endpoint, ucs_status_t status) {
  if (static_cast<Peer*>(arg)->relies_on_rail) {
    on_shared_error(arg, endpoint, status);
  }
}

bool PeerTable::takes_messages(const Peer& peer, TimePoint now) const {
  return peer.life.is_alive() && !detector_.is_out_of_reach(&peer.watched_shared, now);
}

// A socket that is closed with bytes that nobody read resets the connection, and what the peer's
// kernel still lacks, because a packet was lost, is lost with it.
void PeerTable::await_acknowledgements(Locked& locked, std::chrono::milliseconds patience) {
  const TimePoint connected_by = Clock::now() + kConnecting;
  TimePoint give_up = Clock::now() + patience;
  size_t least_left = reactor_.unacknowledged_bytes(locked, {});
  for (;;) {
    const TimePoint now = Clock::now();
    detector_.look(now);  // for the answers; what else it finds concerns nobody any more
    bool all_reached = true;
    // A silent peer may have opened a connection, too, which UCX keeps when this end's is cut.
    std::set<IpAddress> silent;
    for (const auto& [process, peer] : peers_) {
      if (peer->is_silent || peer->is_blocked) silent.insert(peer->info.heartbeat_address);
      if (peer->life.is_alive() && !takes_messages(*peer, now)) {
        all_reached = false;
        if (now >= connected_by) {
          peer->shared.cut();
          peer->rail.cut();
        }
      }
    }
    const bool is_settled = all_reached || now >= connected_by;
    const size_t left = reactor_.unacknowledged_bytes(locked, silent);
    if (left < least_left) {
      least_left = left;
      give_up = now + patience;
    }
    if (now >= give_up || (is_settled && left == 0)) return;
    reactor_.progress(locked);
    std::this_thread::sleep_for(kAcknowledgementPause);
  }
}

void PeerTable::close(Locked& locked, std::chrono::milliseconds patience) {
  await_acknowledgements(locked, patience);
  const TimePoint now = Clock::now();
  const TimePoint give_up = now + patience;
  std::vector<void*> closing;
  const auto start = [&](Link& link, bool flush) {
    if (void* request = link.close(flush)) closing.push_back(request);
  };
  for (const auto& [process, peer] : peers_) {
    const bool flush = takes_messages(*peer, now);
    start(peer->shared, flush);
    start(peer->rail, flush && peer->relies_on_rail);
  }
  while (!closing.empty() && Clock::now() < give_up) {
    reactor_.progress(locked);
    std::erase_if(closing, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) {
        return false;
      }
      ucp_request_free(request);
      return true;
    });
  }
  for (void* request : closing) {
    ucp_request_free(request);
  }
  // After the goodbyes, so that nobody takes the end of the heartbeats for a death.
  detector_.close();
}

}  // namespace q7x2
