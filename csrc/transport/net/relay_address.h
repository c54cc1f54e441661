// The relay of this process, as Q7X2_RELAY says: a machine that both of two processes behind NAT
// can reach (transport/stream/relay_hello.h).
#pragma once

#include <optional>

#include "base/ip_address.h"

namespace q7x2 {

/// Nothing: it has none. Throws Error(kInvalidArgument) unless it is a host and a port.
std::optional<IpEndpoint> relay_of_environment();

}  // namespace q7x2
