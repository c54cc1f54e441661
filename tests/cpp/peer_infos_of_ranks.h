// The peer infos of the processes that run a test.
#pragma once

#include <vector>

#include "ranks.h"
#include "transport/bootstrap/peer_address.h"

namespace q7x2::test {

/// By rank. Must be called on all ranks.
inline std::vector<PeerInfo> cards_of_ranks(Rank& rank) {
  rank.put("handle", PeerAddress{peer_info_of_process(rank.runtime()), rank.rank}.encode(
                         rank.runtime().secret()));
  std::vector<PeerInfo> peer_infos;
  for (int r = 0; r < rank.world_size; ++r) {
    peer_infos.push_back(
        PeerAddress::decode(rank.get(r, "handle"), rank.runtime().secret()).peer_info);
  }
  return peer_infos;
}

}  // namespace q7x2::test
