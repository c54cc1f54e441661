#include "transport/group/group_failure.h"

#include <algorithm>
#include <new>
#include <string>

#include "transport/group/membership.h"
#include "transport/peer/peer_table.h"

namespace q7x2 {
namespace {

constexpr int kSmall = 16;

}  // namespace

std::vector<int> neighbours(int rank, int world_size) {
  std::vector<int> ranks;
  if (world_size <= kSmall) {
    for (int r = 0; r < world_size; ++r) {
      if (r != rank) ranks.push_back(r);
    }
    return ranks;
  }
  for (int distance = 1; distance < world_size; distance *= 2) {
    ranks.push_back((rank + distance) % world_size);
    ranks.push_back((rank - distance + world_size) % world_size);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Error failure_of(const Membership& members, const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  return {ErrorCode::kTransport,
          members.describe(members.rank()) + " could not go on: " +
              (no_memory ? "it could not allocate memory" : exception.what()),
          members.rank()};
}

Error death_of(const Membership& members, const Peer& peer) {
  const int rank = members.rank_of(peer);
  const std::string who = members.describe(rank);
  if (peer.life.is_lost_by(Evidence::kLate)) {
    return {ErrorCode::kTimeout,
            who + " is late: " + peer.life.reason() + ", so the connection to it was closed", rank};
  }
  // If a path is blocked, either end may report it, so both are named.
  const std::string here = members.describe(members.rank());
  std::string reason = peer.life.reason();
  if (peer.life.is_lost_by(Evidence::kPathFromBlocked)) {
    reason =
        "the path for data from it to " + here + " is blocked (firewall or MTU?), its host answers";
  } else if (peer.life.is_lost_by(Evidence::kPathToBlocked)) {
    reason += ", seen from " + here;
  }
  return {ErrorCode::kPeerFailed, who + " failed: " + reason, rank};
}

}  // namespace q7x2
