// How a call gets its Plan. The executor is handed a PlannedCall and knows no Planner.
//
// The first call of a kind is preceded by a broadcast of rank 0's choice, a collective like any
// other: so it needs no way of its own through the transport, and ranks that disagree about the
// call are told by it. The call waits for its turn until the choice is there.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "executor/call/collective_call.h"
#include "plan/choose/plan_cache.h"

namespace q7x2 {

/// A call that has passed `check_call`, with the entry that has, or will have, the choice for it.
struct PlannedCall {
  CollectiveCall call;
  std::shared_ptr<PlanCache> plans;
  std::shared_ptr<PlanCache::Entry> entry;
  /// The entry for the all-reduce of counts that runs before it, where a codec balances the parts
  /// of an all-reduce (plan/ir/owner_ranges.h).
  std::shared_ptr<PlanCache::Entry> counting;
};

/// What this process runs on: the `environment` of its PlanBooks.
std::string environment_of_plans();

/// What the planner is asked for a call. `call` must stay as long as the shape.
CallShape shape_of(const CollectiveCall& call);
/// Makes it the shape of a call with a codec, for elements of `dtype`. `codec` must stay as long as
/// the shape.
void add_codec(CallShape& shape, const Codec& codec, DType dtype, EdgeWish edges);

/// Throws Error(kInvalidArgument) where `check_call` or the planner refuses the call.
PlannedCall plan_call(CollectiveCall call, std::shared_ptr<PlanCache> plans, int rank,
                      int world_size);
/// The same for a call whose choice each rank makes by itself, so that nothing has to precede it.
PlannedCall plan_call_alone(CollectiveCall call, std::shared_ptr<PlanCache> plans, int rank,
                            int world_size);

}  // namespace q7x2
