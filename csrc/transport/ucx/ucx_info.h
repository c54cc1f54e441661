// Which UCX this process uses, and which transports it offers.
#pragma once

#include <string>
#include <vector>

namespace q7x2 {

struct UcxInfo {
  std::string version;  ///< the loaded library's, for example "1.22.0"
  std::string library;  ///< path of the loaded libucp
  /// Transport and device, "tcp/eth0", of everything that UCX offers here with the user's UCX_*
  /// settings.
  std::vector<std::string> resources;
};

/// Opens and closes a UCP context. Throws Error(kTransport) if UCX refuses.
UcxInfo ucx_info();

/// Version of the headers that q7x2 was compiled with, "1.22".
std::string ucx_header_version();

}  // namespace q7x2
