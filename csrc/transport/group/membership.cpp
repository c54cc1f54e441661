#include "transport/group/membership.h"

#include <algorithm>

namespace q7x2 {

Membership::Membership(std::string name, int rank, std::vector<PeerInfo> peer_infos,
                       std::vector<Peer*> peers)
    : name_(std::move(name)),
      rank_(rank),
      peer_infos_(std::move(peer_infos)),
      peers_(std::move(peers)) {
  for (int r = 0; r < world_size(); ++r) {
    if (same_host(r)) {
      host_ranks_.push_back(r);
    }
  }
}

int Membership::rank_of(const Peer& peer) const {
  const auto found = std::find(peers_.begin(), peers_.end(), &peer);
  return found == peers_.end() ? -1 : static_cast<int>(found - peers_.begin());
}

int Membership::rank_of(uint64_t process) const {
  const auto found =
      std::find_if(peer_infos_.begin(), peer_infos_.end(),
                   [&](const PeerInfo& peer_info) { return peer_info.process == process; });
  return found == peer_infos_.end() ? -1 : static_cast<int>(found - peer_infos_.begin());
}

std::string Membership::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(peer_info(rank).pid) + " on " +
         peer_info(rank).hostname + ")";
}

std::optional<std::pair<size_t, size_t>> Membership::private_network(int a, int b) const {
  const PeerInfo& one = peer_info(std::min(a, b));
  const PeerInfo& other = peer_info(std::max(a, b));
  // Networks behind NAT often have the same numbers.
  if (one.host_key == other.host_key || is_nat_between(one, other)) {
    return std::nullopt;
  }
  auto network = common_network(one.rails, other.rails);
  if (network && a > b) {
    std::swap(network->first, network->second);
  }
  return network;
}

bool Membership::has_private_networks() const {
  for (int a = 0; a < world_size(); ++a) {
    if (peer_info(a).rails.empty()) {
      continue;
    }
    for (int b = a + 1; b < world_size(); ++b) {
      if (private_network(a, b)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace q7x2
