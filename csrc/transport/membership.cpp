#include "transport/membership.h"

#include <algorithm>

namespace q7x2 {

Membership::Membership(std::string name, int rank, std::vector<Card> cards,
                       std::vector<Peer*> peers)
    : name_(std::move(name)), rank_(rank), cards_(std::move(cards)), peers_(std::move(peers)) {
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
  const auto found = std::find_if(cards_.begin(), cards_.end(),
                                  [&](const Card& card) { return card.process == process; });
  return found == cards_.end() ? -1 : static_cast<int>(found - cards_.begin());
}

std::string Membership::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(card(rank).pid) + " on " +
         card(rank).hostname + ")";
}

std::optional<std::pair<size_t, size_t>> Membership::private_network(int a, int b) const {
  const Card& one = card(std::min(a, b));
  const Card& other = card(std::max(a, b));
  if (one.host_key == other.host_key) {
    return std::nullopt;
  }
  auto network = common_network(one.beside, other.beside);
  if (network && a > b) {
    std::swap(network->first, network->second);
  }
  return network;
}

bool Membership::has_private_networks() const {
  for (int a = 0; a < world_size(); ++a) {
    if (card(a).beside.empty()) {
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
