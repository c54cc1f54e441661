// Recursive doubling as a piece of other algorithms' Plans.
#pragma once

#include <vector>

#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

/// Adds to the Forest's present phase an all-reduce among `team` of what each of them holds of
/// `part`. The Forest's rank is one of the team; all of the team name it in the same order.
void add_recursive_doubling(Forest& forest, int part, const std::vector<int>& team);

/// What travels for it. `share`: of a slice; `contributions`: that each of the team holds.
std::vector<Round> doubling_rounds(const std::vector<int>& team, double share,
                                   double contributions);

/// All ranks in near order, the hosts of which stand so that those are near whose first ranks
/// exchange. The request has a Fabric.
Order doubling_order_of_hosts(const ScheduleRequest& request);

}  // namespace q7x2
