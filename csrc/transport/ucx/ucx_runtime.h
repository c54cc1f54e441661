// What the reactor drives: a UCP context and its worker, opened with what this machine can give.
#pragma once

#include <string>
#include <vector>

#include "transport/ucx/ucx.h"

namespace q7x2 {

struct UcxRuntime {
  UcpContext context;
  UcpWorker worker;
  /// Sentences for the user: the transports that are not used, and what can be done about it.
  std::vector<std::string> warnings;
  /// The transports through shared memory may get no more of it while messages pile up.
  bool may_run_out = false;
};

/// Opens UCX within the user's UCX_TLS. UCX gives up if one transport cannot be opened; this goes
/// on without the one that shared memory does not suffice for. Throws Error(kTransport) if none is
/// left, or if a limit of the process is in the way (process_limits.h).
UcxRuntime open_ucx(const std::vector<std::string>& net_devices);

}  // namespace q7x2
