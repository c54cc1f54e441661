#include "executor/collective/group_connections.h"

#include <map>
#include <optional>
#include <set>

#include "transport/peer/peer_table.h"
#include "transport/quirks/tcp_sockets.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

using Hosts = std::map<IpAddress, int>;

/// The host that has this address in addition to the one by which it is reached. Empty if several
/// hosts have the address, which then identifies none.
std::optional<int> host_with(const IpAddress& address, const Group& group,
                             const std::vector<int>& host_of) {
  std::set<int> hosts;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (group.membership().peer_info(rank).addresses().contains(address)) {
      hosts.insert(host_of[static_cast<size_t>(rank)]);
    }
  }
  return hosts.size() == 1 ? std::optional(*hosts.begin()) : std::nullopt;
}

}  // namespace

std::vector<Connection> group_connections(Locked&, Group& group, const std::vector<int>& host_of) {
  Hosts shared;
  std::map<int, Hosts> rails;  // by the worker of a network interface
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const int host = host_of[static_cast<size_t>(rank)];
    shared[group.membership().peer_info(rank).heartbeat_address] = host;
    if (rank == group.rank() || group.links().wire(rank) != Wire::kPrivate) continue;
    const Peer& peer = group.membership().peer(rank);
    rails[peer.rail.worker().event_fd()][peer.rail_address] = host;
  }
  std::vector<Connection> all;
  const int worker = group.runtime().reactor().worker().event_fd();
  for (const ConnectionTotals& each : connection_totals(worker)) {
    const auto known = shared.find(each.peer.address);
    const std::optional<int> host =
        known != shared.end() ? known->second : host_with(each.peer.address, group, host_of);
    if (host) all.push_back({{*host, /*is_private=*/false}, each});
  }
  for (const auto& [interface, hosts] : rails) {
    for (const ConnectionTotals& each : connection_totals(interface)) {
      const auto known = hosts.find(each.peer.address);
      if (known != hosts.end()) all.push_back({{known->second, /*is_private=*/true}, each});
    }
  }
  return all;
}

}  // namespace q7x2
