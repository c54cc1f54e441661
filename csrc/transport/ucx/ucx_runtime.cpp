#include "transport/ucx/ucx_runtime.h"

#include <map>
#include <set>
#include <utility>

#include "transport/quirks/process_limits.h"
#include "transport/quirks/shared_memory_limits.h"

namespace q7x2 {
namespace {

using Obstacles = std::map<std::string, std::string>;  // transport, and why it cannot be used

Obstacles find_obstacles(const std::string& tls) {
  Obstacles obstacles;
  if (allows_transport(tls, "posix")) {
    if (auto obstacle = posix_obstacle(local_ranks())) {
      obstacles.emplace("posix", std::move(*obstacle));
    }
  }
  if (allows_transport(tls, "sysv")) {
    if (auto obstacle = sysv_obstacle()) {
      obstacles.emplace("sysv", std::move(*obstacle));
    }
  }
  return obstacles;
}

// The transports that are not used. One transport through shared memory is enough, and each takes
// memory and time when UCX starts. SysV segments are preferred: q7x2's own segments take memory
// only as it is used.
std::set<std::string> left_out(const std::string& tls, const Obstacles& obstacles) {
  std::set<std::string> without;
  for (const auto& [transport, reason] : obstacles) {
    without.insert(transport);
  }
  if (allows_transport(tls, "sysv") && !without.contains("sysv") &&
      allows_transport(tls, "posix")) {
    without.insert("posix");
  }
  return without;
}

UcpContext open_context(const std::vector<std::string>& net_devices,
                        const std::set<std::string>& without, const Obstacles& obstacles) {
  try {
    return UcpContext(net_devices, /*tcp_only=*/false, without);
  } catch (const Error& error) {
    std::string reasons;
    for (const auto& [transport, reason] : obstacles) {
      reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    throw Error(error.code(), error.what() + (reasons.empty() ? "" : ": " + reasons));
  }
}

}  // namespace

UcxRuntime open_ucx(const std::vector<std::string>& net_devices) {
  check_process_limits();
  const std::string tls = configured_transports();
  Obstacles obstacles = find_obstacles(tls);
  for (;;) {
    const std::set<std::string> without = left_out(tls, obstacles);
    UcpContext context = open_context(net_devices, without, obstacles);
    try {
      UcpWorker worker(context);
      std::vector<std::string> warnings;
      for (const auto& [transport, reason] : obstacles) {
        warnings.push_back("UCX's transport " + transport + " is not used: " + reason);
      }
      const bool may_run_out = is_scarce(context.transports(), local_ranks());
      return {std::move(context), std::move(worker), std::move(warnings), may_run_out};
    } catch (const Error& error) {
      const size_t known = obstacles.size();
      obstacles.merge(find_obstacles(tls));
      if (obstacles.size() == known) {
        // Other processes may have used the memory meanwhile, and released it since.
        for (const char* transport : {"posix", "sysv"}) {
          if (allows_transport(tls, transport) && !without.contains(transport)) {
            obstacles.emplace(transport, error.what());
          }
        }
      }
      if (obstacles.size() == known) {
        throw;
      }
    }
  }
}

}  // namespace q7x2
