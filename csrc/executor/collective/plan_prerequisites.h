// What has to precede a call so that all ranks run it by the same Plan (plan/choose/plan_cache.h):
// the announcement of rank 0's choices, and rounds that tune the choice.
//
// Tuning rounds have three topics: how long calls took by each choice, at which rates links and
// processors worked, and which choice follows from rates that have changed. The last two come
// together. If the first of them finds that rates have changed, the second one brings the choice
// for them, so that the call is already made by it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/collective/prerequisite.h"
#include "plan/choose/plan_cache.h"

namespace q7x2 {

/// In the order in which they run before call `number` of `entry`. `agreed`: what the ranks must
/// agree on. Empty: nothing precedes it.
std::vector<std::shared_ptr<Prerequisite>> prerequisites_of(
    const std::shared_ptr<PlanCache>& plans, const std::shared_ptr<PlanCache::Entry>& entry,
    uint64_t number, uint32_t agreed);

}  // namespace q7x2
