// Membership: who is in a group, and where. Immutable; all ranks of the group have the same cards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/card.h"

namespace q7x2 {

struct Peer;

class Membership {
 public:
  /// `cards` and `peers` by rank. The peer of this rank is null; the peer table owns the others.
  Membership(std::string name, int rank, std::vector<Card> cards, std::vector<Peer*> peers);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(cards_.size()); }
  /// What the ranks published of themselves, by rank.
  const std::vector<Card>& cards() const { return cards_; }
  const Card& card(int rank) const { return cards_[static_cast<size_t>(rank)]; }
  /// Not for this rank.
  Peer& peer(int rank) const { return *peers_[static_cast<size_t>(rank)]; }
  /// -1: it is no member.
  int rank_of(const Peer& peer) const;
  /// By its random number; -1: it is no member.
  int rank_of(uint64_t process) const;
  /// "rank 3 (pid 41 on host a)".
  std::string describe(int rank) const;

  /// Whether `rank` is on this host.
  bool same_host(int rank) const { return card(rank).host_key == card(rank_).host_key; }
  /// The ranks on this host, this one included, in order.
  const std::vector<int>& host_ranks() const { return host_ranks_; }

  /// The network beside the shared one that the hosts of two ranks are both on: the interfaces of
  /// its ends, as indices into the ranks' cards. All ranks say the same.
  std::optional<std::pair<size_t, size_t>> private_network(int a, int b) const;
  /// Whether any two hosts have such a network.
  bool has_private_networks() const;

 private:
  std::string name_;
  int rank_;
  std::vector<Card> cards_;
  std::vector<Peer*> peers_;
  std::vector<int> host_ranks_;
};

}  // namespace q7x2
