// Conductor: rank 0 during a probe. It tells ranks whom to talk to, and makes a Fabric of what they
// report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/probe/probe_options.h"
#include "fabric/fabric.h"
#include "transport/group/group.h"

namespace q7x2 {

/// `bindings`: by rank. `descriptions`: by host, as host_description.h has them. `start`: when the
/// probe began.
Fabric conduct(const std::shared_ptr<Group>& group, const std::vector<Fabric::Binding>& bindings,
               const std::vector<std::string>& descriptions, TimePoint start,
               const ProbeOptions& options);

}  // namespace q7x2
