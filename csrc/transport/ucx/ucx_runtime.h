// What the reactor drives: a UCP context and its worker, opened within the limits of this machine.
#pragma once

#include <string>
#include <vector>

#include "transport/ucx/ucx.h"

namespace q7x2 {

struct UcxRuntime {
  UcpContext context;
  UcpWorker worker;
  /// Sentences for the user: the transports that are not used, and how to change that.
  std::vector<std::string> warnings;
  /// The shared-memory transports may run out of memory while messages without a receive
  /// accumulate.
  bool may_run_out = false;
};

/// Opens UCX within the user's UCX_TLS. UCX fails if one transport cannot be opened. This function
/// leaves out transports that have not enough shared memory, and continues. Throws
/// Error(kTransport) if none is left, or if a limit of the process prevents it (process_limits.h).
UcxRuntime open_ucx(const std::vector<std::string>& net_devices);

}  // namespace q7x2
