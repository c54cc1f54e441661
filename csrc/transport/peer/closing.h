// Closes the connections of a process that leaves.
#pragma once

#include <chrono>
#include <vector>

#include "transport/peer/liveness_monitor.h"
#include "transport/peer/peer.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

/// Closes all connections. First waits until the kernels of all peers have received what was sent;
/// gives up after `patience` without progress. Connections to hosts that do not answer are closed
/// by force instead. At the end the processes that watch this one are told that it has left.
void close_connections(Locked& locked, Reactor& reactor, LivenessMonitor& monitor,
                       const std::vector<Peer*>& peers, std::chrono::milliseconds patience);

}  // namespace q7x2
