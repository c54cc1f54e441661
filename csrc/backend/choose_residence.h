// Where the elements of the calls of a launch are (executor/residence/residence.h). It is decided
// once, before their regions have addresses.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/device_stream.h"
#include "backend/tensor_call.h"
#include "executor/residence/residence.h"
#include "plan/choose/plan_cache.h"
#include "transport/group/group.h"

namespace q7x2 {

/// Makes the residence of a call whose elements stay on a device, from the latch of its inputs.
using MakeResidence = std::function<std::unique_ptr<Residence>(std::shared_ptr<InputLatch>)>;

/// Null: the elements are in host memory, or are staged there. Says in the calls whether they are
/// direct. Throws c10::Error if they must be, and cannot.
MakeResidence choose_residence(std::vector<TensorCall>& calls, Group& group, PlanCache& plans,
                               const DeviceLanes& lanes);

}  // namespace q7x2
