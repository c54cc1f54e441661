// What to say to a user whose UCX has no network.
#pragma once

#include <string>

namespace q7x2 {

/// Why UCX has no network in this process: what the variables say, and which interfaces there are.
/// `tls`: what UCX_TLS says.
std::string why_no_network(const std::string& tls);

}  // namespace q7x2
