// Whether each rank of a new group has a network to those that it shares no memory with.
//
// UCX says nothing if UCX_NET_DEVICES leaves it without a network: the first message fails, and
// nothing in that error leads to the variable. All ranks read it from the peer infos, so all of
// them refuse the group, and the one that lacks a network knows why.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/peer/peer_info.h"

namespace q7x2 {

/// Whether `transports`, as a peer info lists them, has one that leads to other hosts.
bool has_network(std::string_view transports);

/// Throws Error(kTransport) if a rank has no network, but needs one. `peer infos`: by rank. `rank`:
/// this one. `group`: its name.
void refuse_without_network(const std::vector<PeerInfo>& peer_infos, int rank,
                            const std::string& group);

/// Throws Error(kMismatch) if there is NAT between two ranks, and one of them has no StreamLane.
void refuse_nat_without_streams(const std::vector<PeerInfo>& peer_infos, const std::string& group);

/// Throws Error(kInvalidArgument) if this process, which is rank `rank`, needs TCP to talk to the
/// others and was forked from a process that used UCX (transport/quirks/forked_ucx.h).
void refuse_tcp_after_fork(const std::vector<PeerInfo>& peer_infos, int rank);

}  // namespace q7x2
