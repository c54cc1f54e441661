// Closes the connections of a process that leaves.
#pragma once

#include <chrono>
#include <vector>

#include "transport/peer/liveness_monitor.h"
#include "transport/peer/peer.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

/// Closes all connections. Waits until the kernels of all peers have what was sent, or for
/// `patience` none of it has arrived. Connections to hosts that do not answer are closed by force
/// instead. At the end those who watch this process learn that it has left.
void close_connections(Locked& locked, Reactor& reactor, LivenessMonitor& monitor,
                       const std::vector<Peer*>& peers, std::chrono::milliseconds patience);

}  // namespace q7x2
