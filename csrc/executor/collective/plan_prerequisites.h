// The collectives that precede a call so that all ranks run it by the same Plan
// (plan/choose/plan_cache.h): the announcement of rank 0's choices, and rounds that tune the
// choice.
//
// Tuning rounds have three topics: how long calls took by each choice, the rates at which links and
// processors worked, and the choice for rates that have changed. The last two come together. If the
// first of them finds that rates have changed, the second brings the choice for the new rates, so
// the call already uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/collective/prerequisite.h"
#include "plan/choose/plan_cache.h"

namespace q7x2 {

/// The prerequisites of call `number` of `entry`, in the order in which they run; empty if there
/// are none. `agreed`: a number that must be equal on all ranks.
std::vector<std::shared_ptr<Prerequisite>> prerequisites_of(
    const std::shared_ptr<PlanCache>& plans, const std::shared_ptr<PlanCache::Entry>& entry,
    uint64_t number, uint32_t agreed);

}  // namespace q7x2
