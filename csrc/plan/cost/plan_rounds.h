// The rounds of Plans that no generator describes.
#pragma once

#include <span>
#include <vector>

#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// What the Plans of all ranks send, for the cost model: a round holds the messages before which
/// equally many others must have arrived. The Plans have passed `check_plans`.
std::vector<Round> rounds_of(std::span<const Plan> plans);

}  // namespace q7x2
