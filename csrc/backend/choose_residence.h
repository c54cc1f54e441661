// Decides where the elements of a c10d call are (executor/residence/residence.h). The decision is
// made once per launch, before the regions have addresses.
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

/// Makes the Residence of a call whose elements stay on a device. The argument is the latch of its
/// inputs.
using MakeResidence = std::function<std::unique_ptr<Residence>(std::shared_ptr<InputLatch>)>;

/// Null: the elements are in host memory, or are staged there. Sets `is_direct` of the calls.
/// Throws c10::Error if the calls must be direct and cannot be.
MakeResidence choose_residence(std::vector<TensorCall>& calls, Group& group, PlanCache& plans,
                               const DeviceLanes& lanes);

}  // namespace q7x2
