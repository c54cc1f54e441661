// Whose path for data is blocked. See transport/net/path_clock.h.
//
// A connection of UCX leads to an address, and to a port if this end has opened it. UCX's address
// of a worker has both, in network order, so they say whose worker it is. If the other end has
// opened the connection, its port is anybody's on that host; then it is nobody's to whom this end
// has opened a connection itself.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "transport/peer/peer_table.h"

namespace q7x2 {
namespace {

bool has_address(std::string_view worker, const IpAddress& address) {
  return worker.find(address.wire_bytes()) != std::string_view::npos;
}

bool has_port(std::string_view worker, uint16_t port) {
  const std::array<char, 2> bytes{static_cast<char>(port >> 8), static_cast<char>(port)};
  return worker.find(std::string_view(bytes.data(), bytes.size())) != std::string_view::npos;
}

/// For whoever may have to change a firewall: what it lets pass, and what it does not.
std::string why_blocked(const PathSample& connection, bool is_rail) {
  const std::string where =
      "TCP to " + connection.peer.text() + (is_rail ? " on the private link" : "");
  return std::string(kPathToIsBlocked) +
         (connection.is_connecting ? ": a firewall drops " + where + ", which UCX listens at"
                                   : ": " + where + " is not acknowledged");
}

const Link& link_of(const Peer::Watched& user) {
  return user.is_rail ? user.peer->rail : user.peer->shared;
}

bool uses(const Peer::Watched& user, const IpAddress& address) {
  const Peer& peer = *user.peer;
  return peer.life.is_alive() && !peer.same_host && link_of(user).is_open() &&
         (!user.is_rail || peer.relies_on_rail) && has_address(link_of(user).address(), address);
}

}  // namespace

void PeerTable::watch_paths(Locked& locked, TimePoint now) {
  if (detector_.num_heartbeats() == 0 || now < paths_.due()) {
    return;
  }
  std::vector<int> workers;
  for (const pollfd& worker : reactor_.events(locked)) workers.push_back(worker.fd);
  const auto answers = [&](const IpAddress& address) { return answers_elsewhere(address, now); };
  for (const PathSample& connection : paths_.look(now, workers, answers)) {
    for (const Peer::Watched* user : users_of(connection)) {
      user->peer->is_blocked = true;
      suspect(locked, *user->peer, why_blocked(connection, user->is_rail), Evidence::kBlocked);
    }
  }
}

bool PeerTable::answers_elsewhere(const IpAddress& address, TimePoint now) const {
  return std::ranges::any_of(peers_, [&](const auto& each) {
    const Peer& peer = *each.second;
    return std::ranges::any_of(std::array{&peer.watched_shared, &peer.watched_rail},
                               [&](const Peer::Watched* user) {
                                 return uses(*user, address) && detector_.answers_now(user, now);
                               });
  });
}

std::vector<Peer::Watched*> PeerTable::users_of(const PathSample& connection) {
  std::vector<Peer::Watched*> users;
  for (const auto& [process, peer] : peers_) {
    for (Peer::Watched* user : {&peer->watched_shared, &peer->watched_rail}) {
      if (uses(*user, connection.peer.address)) users.push_back(user);
    }
  }
  const auto listens_there = [&](const Peer::Watched* user) {
    return has_port(link_of(*user).address(), connection.peer.port);
  };
  if (std::ranges::any_of(users, listens_there)) {
    std::erase_if(users, [&](const auto* user) { return !listens_there(user); });
  } else if (std::ranges::any_of(
                 users, [&](const auto* user) { return !has_opened_another(*user, connection); })) {
    std::erase_if(users, [&](const auto* user) { return has_opened_another(*user, connection); });
  }
  return users;
}

bool PeerTable::has_opened_another(const Peer::Watched& user, const PathSample& connection) const {
  return std::ranges::any_of(paths_.connections(), [&](const PathSample& each) {
    return each.peer.address == connection.peer.address &&
           has_port(link_of(user).address(), each.peer.port);
  });
}

}  // namespace q7x2
