// Counts what this process has sent to the hosts of a group over TCP.
#pragma once

#include <vector>

#include "ledger/link_meter.h"
#include "transport/group/group.h"

namespace q7x2 {

/// Returns this process's connections to hosts of the group: over the shared network, by any
/// address of a host, and over the private links that the group uses. Other connections are left
/// out. `host_of`: the host of each rank.
std::vector<Connection> group_connections(Locked& locked, Group& group,
                                          const std::vector<int>& host_of);

}  // namespace q7x2
