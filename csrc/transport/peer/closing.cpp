#include "transport/peer/closing.h"

#include <algorithm>
#include <set>
#include <thread>

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

constexpr std::chrono::microseconds kAcknowledgementPause{200};
// How long a host that was connected to recently may take to answer for the first time.
constexpr std::chrono::milliseconds kConnecting{10};

bool takes_messages(const LivenessMonitor& monitor, const Peer& peer, TimePoint now) {
  const Heartbeat* const heartbeat = monitor.heartbeat(&peer.watched_shared);
  return peer.life.is_alive() && (heartbeat == nullptr || !heartbeat->is_out_of_reach(now));
}

// If a socket is closed while it has unread bytes, the kernel resets the connection. Bytes that
// were sent but not acknowledged, because a packet was lost, would then be lost for good.
void await_acknowledgements(Locked& locked, Reactor& reactor, LivenessMonitor& monitor,
                            const std::vector<Peer*>& peers, std::chrono::milliseconds patience) {
  const TimePoint connected_by = Clock::now() + kConnecting;
  TimePoint give_up = Clock::now() + patience;
  size_t least_left = reactor.unacknowledged_bytes(locked, {});
  for (;;) {
    const TimePoint now = Clock::now();
    monitor.poll(now);  // for the answers; its findings are not needed any more
    bool all_reached = true;
    // A silent peer may have opened a connection too. UCX keeps it when this end's connection is
    // cut.
    std::set<IpAddress> silent;
    for (Peer* const peer : peers) {
      if (peer->life.is_lost_by(Evidence::kSilent) ||
          peer->life.is_lost_by(Evidence::kPathToBlocked)) {
        silent.insert(peer->info.heartbeat_address);
      }
      if (peer->life.is_alive() && !takes_messages(monitor, *peer, now)) {
        all_reached = false;
        if (now >= connected_by) {
          peer->shared.cut();
          peer->rail.cut();
        }
      }
    }
    const bool is_settled = all_reached || now >= connected_by;
    const size_t left = reactor.unacknowledged_bytes(locked, silent);
    if (left < least_left) {
      least_left = left;
      give_up = now + patience;
    }
    if (now >= give_up || (is_settled && left == 0)) return;
    reactor.progress(locked);
    std::this_thread::sleep_for(kAcknowledgementPause);
  }
}

}  // namespace

void close_connections(Locked& locked, Reactor& reactor, LivenessMonitor& monitor,
                       const std::vector<Peer*>& peers, std::chrono::milliseconds patience) {
  if (reactor.streams() != nullptr) reactor.streams()->say_bye();
  await_acknowledgements(locked, reactor, monitor, peers, patience);
  const TimePoint now = Clock::now();
  const TimePoint give_up = now + patience;
  std::vector<void*> closing;
  const auto start = [&](Link& link, bool flush) {
    if (void* request = link.close(flush)) closing.push_back(request);
  };
  for (Peer* const peer : peers) {
    const bool flush = takes_messages(monitor, *peer, now);
    start(peer->shared, flush);
    start(peer->rail, flush && peer->relies_on_rail);
  }
  while (!closing.empty() && Clock::now() < give_up) {
    reactor.progress(locked);
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
  // After the goodbyes, so that no process takes the end of the heartbeats for a death.
  monitor.close();
}

}  // namespace q7x2
