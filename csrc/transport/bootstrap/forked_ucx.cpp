#include "transport/bootstrap/forked_ucx.h"

#include <atomic>
#include <string>

#include "base/error.h"
#include "transport/bootstrap/peer_address.h"

namespace q7x2 {
namespace {

std::atomic<bool> was_forked{false};

}  // namespace

void note_forked_ucx() {
  was_forked = true;
}

void refuse_tcp_after_fork(const std::vector<PeerInfo>& peer_infos, int rank) {
  if (!was_forked) return;
  const PeerInfo& mine = peer_infos[static_cast<size_t>(rank)];
  for (size_t other = 0; other < peer_infos.size(); ++other) {
    const PeerInfo& peer_info = peer_infos[other];
    if (other == static_cast<size_t>(rank)) continue;
    if (talk_through_memory(mine, peer_info)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) +
                    " was forked from a process that used q7x2, and so it can talk through shared "
                    "memory only, but not with rank " +
                    std::to_string(other) + " (" + describe_process(peer_info) +
                    "): fork before the first group is made, or spawn processes",
                rank);
  }
}

}  // namespace q7x2
