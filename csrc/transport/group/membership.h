// Membership: the ranks of a group, and where they are. Immutable; all ranks of the group have the
// same peer infos.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/peer/peer_info.h"

namespace q7x2 {

struct Peer;

class Membership {
 public:
  /// `peer_infos` and `peers` are indexed by rank. The peer of this rank is null; the peer table
  /// owns the others.
  Membership(std::string name, int rank, std::vector<PeerInfo> peer_infos,
             std::vector<Peer*> peers);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(peer_infos_.size()); }
  /// What the ranks published about themselves, by rank.
  const std::vector<PeerInfo>& peer_infos() const { return peer_infos_; }
  const PeerInfo& peer_info(int rank) const { return peer_infos_[static_cast<size_t>(rank)]; }
  /// `rank` must not be this rank.
  Peer& peer(int rank) const { return *peers_[static_cast<size_t>(rank)]; }
  /// The rank of `peer`; -1 if it is no member.
  int rank_of(const Peer& peer) const;
  /// The rank of a process, by its random number; -1 if it is no member.
  int rank_of(uint64_t process) const;
  /// "rank 3 (pid 41 on host a)".
  std::string describe(int rank) const;

  /// Whether `rank` is on this host.
  bool same_host(int rank) const { return peer_info(rank).host_key == peer_info(rank_).host_key; }
  /// The ranks on this host, including this one, in increasing order.
  const std::vector<int>& host_ranks() const { return host_ranks_; }

  /// A private network that the hosts of both ranks are on, apart from the shared one: the
  /// interfaces of its ends, as indices into the ranks' peer infos. Equal on all ranks.
  std::optional<std::pair<size_t, size_t>> private_network(int a, int b) const;
  /// Whether any two hosts have a private network.
  bool has_private_networks() const;

 private:
  std::string name_;
  int rank_;
  std::vector<PeerInfo> peer_infos_;
  std::vector<Peer*> peers_;
  std::vector<int> host_ranks_;
};

}  // namespace q7x2
