// Placement: which ranks of a group share a host.
#pragma once

#include <string>
#include <vector>

#include "transport/group/group.h"

namespace q7x2 {

/// The host of each rank, numbered in the order of their first ranks, and the hosts' names: host
/// names, made unique.
struct Placement {
  std::vector<int> host_of;
  std::vector<std::string> names;
  std::vector<std::string> keys;  ///< host_key() of each host, and its private networks

  /// All ranks, by host and rank. The first is rank 0.
  std::vector<int> order() const;
  /// The first rank of each host.
  std::vector<int> leaders() const;
};
/// `peer_infos`: by rank.
Placement placement_of(const std::vector<PeerInfo>& peer_infos);
Placement placement_of(const Group& group);

}  // namespace q7x2
