// The error message for a user whose UCX has no network.
#pragma once

#include <string>

namespace q7x2 {

/// Why UCX has no network in this process: the relevant environment variables, and the interfaces
/// that exist. `tls`: the value of UCX_TLS.
std::string why_no_network(const std::string& tls);

}  // namespace q7x2
