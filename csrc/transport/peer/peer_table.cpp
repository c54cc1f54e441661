#include "transport/peer/peer_table.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/net/silence_limit.h"
#include "transport/peer/closing.h"
#include "transport/quirks/process_limits.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;
using Topic = HeartbeatHello::Topic;

constexpr std::chrono::milliseconds kBetweenFiles{100};
// Limit of `catch_up`: each connection to make up for is a break that the other end has not
// noticed.
constexpr int kMostToCatchUp = 1000;

// The likely reason why a connection failed, for an error message.
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
                     const std::vector<IpAddress>& addresses, const Advertised& advertised,
                     Reactor& reactor, OnDeath on_death)
    : secret_(secret),
      reactor_(reactor),
      on_death_(std::move(on_death)),
      monitor_(self.process, secret.key_to(self), addresses),
      admission_(reactor, monitor_, advertised.behind_nat),
      paths_(silence_limit()),
      streams_(reactor, secret, self, addresses, advertised, stream_events()) {}

Peer& PeerTable::meet(Locked& locked, const PeerInfo& peer_info, bool same_host,
                      uint32_t incarnation) {
  admission_.admit(locked, peer_info, same_host);
  auto& slot = peers_[peer_info.process];
  if (slot && slot->incarnation >= incarnation) {
    return *slot;
  }
  auto next = std::make_unique<Peer>();
  if (slot) {
    next->opened_shared.before = slot->opened_shared.all();
    next->opened_rail.before = slot->opened_rail.all();
    next->relies_on_stream = slot->relies_on_stream;
    // The other end noticed the break first.
    if (slot->life.is_alive()) suspect(locked, *slot, "its connection broke", Evidence::kRenewed);
    die(locked, *slot);
    next->life = slot->life.next();
    former_.push_back(std::move(slot));
  }
  slot = std::move(next);
  Peer& peer = *slot;
  peer.table = this;
  peer.info = peer_info;
  peer.incarnation = incarnation;
  peer.same_host = same_host;
  peer.relies_on_stream |= is_nat_between(peer_info, same_host);
  peer.shared = Link(reactor_.worker(), peer_info.address);
  if (!same_host) {
    monitor_.expect(peer_info.process);
    return peer;
  }
  end_former_lives(locked, peer_info);
  if (monitor_.watch_process(peer_info.pid, peer_info.process, &peer.watched_shared)) {
    peer.life.reach();
  } else {
    suspect(locked, peer, "its process has ended", Evidence::kProcessEnded);
  }
  return peer;
}

// A process has one Runtime at a time, and others are not told when it ends.
void PeerTable::end_former_lives(Locked& locked, const PeerInfo& peer_info) {
  for (const auto& [process, peer] : peers_) {
    if (process == peer_info.process || !peer->same_host || peer->info.pid != peer_info.pid)
      continue;
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
    if (peer->life.is_suspect() && !peer->life.has_ended()) suspects.push_back(peer.get());
  }
  for (Peer* const peer : suspects) {
    die(locked, *peer);
  }
  std::vector<PeerInfo::Renewed> connections;
  for (const auto& [process, peer] : peers_) {
    const bool broken = peer->life.is_dead() && !peer->life.has_ended();
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
      return;  // the failure to open the needed connection is reported later
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
  if (!peer.life.is_alive()) return;
  if (peer.relies_on_stream) {
    open_stream(peer, /*begins=*/true);
  } else {
    watch(peer, Wire::kShared, /*believes_refusals=*/true);
  }
}

// A process of this host is watched from the beginning.
void PeerTable::watch(Peer& peer, Wire wire, bool believes_refusals) {
  if (peer.same_host) {
    return;
  }
  const bool is_rail = wire == Wire::kPrivate;
  monitor_.watch_host(port_of(peer, is_rail ? Topic::kPrivate : Topic::kShared),
                      is_rail ? &peer.watched_rail : &peer.watched_shared, Clock::now(),
                      believes_refusals);
}

HeartbeatTarget PeerTable::port_of(const Peer& peer, Topic topic) const {
  return {.process = peer.info.process,
          .incarnation = peer.incarnation,
          .endpoint = {peer.same_host             ? kLoopback
                       : topic == Topic::kPrivate ? peer.rail_address
                                                  : peer.info.heartbeat_address,
                       peer.info.heartbeat_port},
          .topic = topic,
          .key = secret_.key_to(peer.info.identity())};
}

void PeerTable::ask_for_admission(Locked&, const PeerInfo& peer_info, bool same_host) {
  if (!admission_.needs_network(peer_info, same_host) || peers_.contains(peer_info.process)) return;
  if (is_nat_between(peer_info, same_host)) return;  // it admits all
  // Not over the loopback, even on this host: the caller needs the address that UCX will use.
  Peer peer;
  peer.info = peer_info;
  monitor_.call_port(port_of(peer, Topic::kAdmit), nullptr, Clock::now());
}

bool PeerTable::awaits_admission(Locked& locked, TimePoint now) {
  poll(locked, now);
  return monitor_.asks_for_admission();
}

// -------------------------------------------------------------------------------- life and death

void PeerTable::suspect(Locked&, Peer& peer, std::string reason, Evidence evidence) {
  if (peer.life.suspect(Clock::now(), evidence, std::move(reason))) {
    if (peer.life.is_suspect()) has_suspects_.store(true, std::memory_order_relaxed);
    num_losses_.fetch_add(1, std::memory_order_release);
  }
}

void PeerTable::cut_off(Locked& locked, Peer& peer, std::string reason) {
  if (peer.life.is_alive()) suspect(locked, peer, std::move(reason), Evidence::kLate);
  die(locked, peer);
}

void PeerTable::declare_dead(Locked& locked, TimePoint now, const std::function<void()>& receive) {
  if (!has_suspects()) {
    return;
  }
  // Receiving, and the consequences of a death, may add and replace peers. Replaced peers stay
  // alive in `former_`.
  std::vector<Peer*> due;
  for (const auto& [process, peer] : peers_) {
    if (peer->life.is_due(now)) due.push_back(peer.get());
  }
  for (Peer* const peer : due) {
    if (peer->life.is_dead()) continue;
    receive();
    die(locked, *peer);
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
  if (!peer.life.declare_dead()) return;
  monitor_.forget(&peer.watched_shared);
  monitor_.forget(&peer.watched_rail);
  if (!peer.same_host && !peer.life.has_ended()) {
    monitor_.hang_up(peer.info.process, peer.incarnation);
  }
  // Where there is NAT, its next call is told.
  if (peer.life.must_give_notice() && !is_nat_between(peer.info, peer.same_host)) {
    const bool is_blocked = peer.life.is_lost_by(Evidence::kPathToBlocked);
    monitor_.call_port(port_of(peer, is_blocked ? Topic::kPathBlocked : Topic::kBroken),
                       &peer.watched_shared, Clock::now());
  }
  peer.shared.cut();
  peer.rail.cut();
  streams_.close(peer);
  on_death_(locked, peer);
}

// -------------------------------------------------------------------------------- what is noticed

void PeerTable::poll(Locked& locked, TimePoint now) {
  for (Finding& finding : monitor_.poll(now)) {
    const auto& watched = *static_cast<Peer::Watched*>(finding.who);
    if (finding.was_reached) watched.peer->life.reach();
    suspect(locked, *watched.peer, finding.reason + (watched.is_rail ? " on the private link" : ""),
            finding.evidence);
  }
  for (const HeartbeatHello& notice : monitor_.take_break_notices()) hear(locked, notice);
  admission_.poll(locked);
  if (now >= next_files_) {
    next_files_ = now + kBetweenFiles;
    reactor_.heed_files(locked);
  }
  poll_paths(locked, now);
}

PeerTable::TimePoint PeerTable::poll_due(Locked&) const {
  return monitor_.num_heartbeats() == 0 ? monitor_.due() : std::min(monitor_.due(), paths_.due());
}

// UCX may notice the end of a connection in a round that reports nothing, and report it in the
// next.
bool PeerTable::is_up_to_date(Locked& locked, TimePoint now) {
  poll(locked, now);
  if (reactor_.progress(locked) || reactor_.progress(locked) || !reactor_.arm(locked)) return false;
  std::vector<pollfd> events = reactor_.events(locked);
  events.push_back({poll_fd(), POLLIN, 0});
  return ::poll(events.data(), events.size(), 0) == 0;
}

void PeerTable::hear(Locked& locked, const HeartbeatHello& notice) {
  Peer* const peer = find(locked, notice.sender);
  if (peer == nullptr || peer->incarnation != notice.incarnation) return;
  if (notice.topic == Topic::kPathBlocked) {
    suspect(locked, *peer,
            "the path for data from it is blocked (firewall or MTU?), its host answers",
            Evidence::kPathFromBlocked);
  } else if (notice.topic == Topic::kShmBlocked || peer->life.is_shm_blocked()) {
    suspect(locked, *peer,
            "it no longer receives messages from other processes of its host, because one of them "
            "was killed while it wrote a message to it",
            Evidence::kShmBlocked);
  } else {
    suspect(locked, *peer, "it has given up the connection to this process", Evidence::kGivenUp);
  }
}

void PeerTable::poll_paths(Locked& locked, TimePoint now) {
  if (monitor_.num_heartbeats() == 0 || now < paths_.due()) return;
  const std::vector<int> workers = reactor_.worker_fds(locked);
  PathWatch::Paths open;
  for (const auto& [process, peer] : peers_) {
    if (!peer->life.is_alive() || peer->same_host) continue;
    if (peer->shared.is_open()) open.push_back(&peer->watched_shared);
    if (peer->rail.is_open() && peer->relies_on_rail) open.push_back(&peer->watched_rail);
  }
  const auto answers = [&](const Peer::Watched* path) {
    const Heartbeat* const heartbeat = monitor_.heartbeat(path);
    return heartbeat != nullptr && heartbeat->answers_now(now);
  };
  for (PathWatch::Blocked& blocked : paths_.poll(now, workers, open, answers)) {
    suspect(locked, *blocked.path->peer, std::move(blocked.reason), Evidence::kPathToBlocked);
  }
}

void PeerTable::lose_host(Locked&) {
  for (const auto& [process, peer] : peers_) {
    if (peer->same_host && peer->life.is_alive()) {
      monitor_.call_port(port_of(*peer, Topic::kShmBlocked), &peer->watched_shared, Clock::now());
    }
  }
}

std::string PeerTable::why_late(Locked&, const Peer& peer) const {
  if (peer.same_host) {
    return is_stopped(peer.info.pid) ? "its process is stopped" : "its process is alive";
  }
  const Heartbeat* const heartbeat = monitor_.heartbeat(&peer.watched_shared);
  const bool answers = heartbeat != nullptr ? heartbeat->answers(Clock::now())
                                            : peer.stream != nullptr && peer.stream->is_heard();
  return answers ? "its host answers" : "";
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

void PeerTable::close(Locked& locked, std::chrono::milliseconds patience) {
  std::vector<Peer*> peers;
  for (const auto& [process, peer] : peers_) peers.push_back(peer.get());
  close_connections(locked, reactor_, monitor_, peers, patience);
}

}  // namespace q7x2
