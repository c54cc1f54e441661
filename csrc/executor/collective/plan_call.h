// Gets the Plan of a call. The executor receives a PlannedCall, and does not know the Planner.
//
// The first call of a kind is preceded by a broadcast of rank 0's choice. This is a collective like
// any other: the transport needs nothing special for it, and ranks that disagree about the call
// detect it there. The call waits for its turn until it has the choice.
#pragma once

#include <memory>
#include <string>

#include "executor/call/collective_call.h"
#include "plan/choose/plan_cache.h"

namespace q7x2 {

/// A call that has passed `check_call`, and the entry that has its choice or gets it later.
struct PlannedCall {
  CollectiveCall call;
  std::shared_ptr<PlanCache> plans;
  std::shared_ptr<PlanCache::Entry> entry;
  /// The entry for the all-reduce of counts that precedes the call; null unless a codec balances
  /// the parts of an all-reduce (plan/ir/owner_ranges.h).
  std::shared_ptr<PlanCache::Entry> counting;
};

/// The build of q7x2 and the instruction set of this process: the `environment` of its PlanCaches.
std::string environment_of_plans();

/// What the planner must know of a call. `call` must outlive the shape.
CallShape shape_of(const CollectiveCall& call);
/// Adds a codec, for elements of `dtype`. `codec` must outlive the shape.
void add_codec(CallShape& shape, const Codec& codec, DType dtype, EdgeWish edges);

/// Throws Error(kInvalidArgument) if `check_call` or the planner refuses the call.
PlannedCall plan_call(CollectiveCall call, std::shared_ptr<PlanCache> plans, int rank,
                      int world_size);
/// The same for a call whose choice each rank makes by itself, so that no broadcast precedes it.
PlannedCall plan_call_alone(CollectiveCall call, std::shared_ptr<PlanCache> plans, int rank,
                            int world_size);

}  // namespace q7x2
