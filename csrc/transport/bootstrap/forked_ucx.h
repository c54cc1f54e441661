// Which groups a process can make that was forked from one that used UCX.
//
// A fork copies no threads. UCX has one that accepts connections by TCP, and starts it once. So in
// a forked child it counts as running, but does not exist, and nobody could connect to the child.
// Shared memory needs no such thread.
#pragma once

#include <vector>

#include "transport/peer/peer_info.h"

namespace q7x2 {

/// This process is a child made by fork, and its parent had a worker of UCX.
void note_forked_ucx();

/// Throws Error(kInvalidArgument) where this process, which is rank `rank`, needs TCP to talk to
/// the others, and was forked like that.
void refuse_tcp_after_fork(const std::vector<PeerInfo>& peer_infos, int rank);

}  // namespace q7x2
