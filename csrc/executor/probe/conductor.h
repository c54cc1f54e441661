// Conductor: rank 0 during a probe. It tells ranks whom to talk to, and makes a Fabric of what they
// report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/probe/latencies.h"
#include "executor/probe/probe_options.h"
#include "fabric/fabric.h"
#include "transport/group/group.h"

namespace q7x2 {

/// What the leaders of all hosts have found unasked.
struct FirstFindings {
  std::vector<std::string> descriptions;  ///< by host, as host_description.h has them
  std::vector<Latency> latencies;
};

/// `bindings`: by rank. `start`: when the probe began.
Fabric conduct(const std::shared_ptr<Group>& group, const std::vector<Fabric::Binding>& bindings,
               const FirstFindings& findings, TimePoint start, const ProbeOptions& options);

}  // namespace q7x2
