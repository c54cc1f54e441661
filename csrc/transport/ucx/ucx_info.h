// Which UCX this process runs on, and what it can reach others by.
#pragma once

#include <string>
#include <vector>

namespace q7x2 {

struct UcxInfo {
  std::string version;  ///< of the library that was loaded, for example "1.22.0"
  std::string library;  ///< path of the loaded libucp
  /// Transport and device, "tcp/eth0", of all that UCX offers here under the user's UCX_* settings.
  std::vector<std::string> resources;
};

/// Opens and closes a UCP context. Throws Error(kTransport) where UCX refuses.
UcxInfo ucx_info();

/// Version of the headers q7x2 was compiled with, "1.22".
std::string ucx_header_version();

}  // namespace q7x2
