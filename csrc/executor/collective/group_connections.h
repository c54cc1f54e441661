// What the TCP connections of this process have sent to the hosts of a group.
#pragma once

#include <vector>

#include "ledger/link_meter.h"
#include "transport/group/group.h"

namespace q7x2 {

/// `host_of`: the host of each rank. Connections over the shared network, by whichever address of a
/// host, and over the private links that the group uses. Those that lead elsewhere are left out.
std::vector<Connection> group_connections(Locked& locked, Group& group,
                                          const std::vector<int>& host_of);

}  // namespace q7x2
