// Between which processes nothing goes over TCP.
#pragma once

#include <string_view>

#include "transport/peer/peer_info.h"

namespace q7x2 {

/// Whether UCX can send through memory that processes of a host share: whether both have the same
/// one of its transports for that. They are named as `PeerInfo::transports` is.
bool share_memory(std::string_view transports, std::string_view others);

/// Whether these two talk through shared memory only: they are on one host, and UCX has a transport
/// through memory that both have.
bool talk_through_memory(const PeerInfo& one, const PeerInfo& other);

}  // namespace q7x2
