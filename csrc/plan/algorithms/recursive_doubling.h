// Recursive doubling as a component of other algorithms' Plans.
#pragma once

#include <vector>

#include "plan/algorithms/order.h"
#include "plan/ir/tree.h"

namespace q7x2 {

/// Adds an all-reduce of `part` among `team` to the current phase of the Forest. The Forest's rank
/// is a member of the team; all members pass the team in the same order.
void add_recursive_doubling(Forest& forest, int part, const std::vector<int>& team);

/// The rounds of it. `share`: of a slice; `contributions`: how many each member of the team holds.
std::vector<Round> doubling_rounds(const std::vector<int>& team, double share,
                                   double contributions);

/// All ranks in near order; the hosts are ordered so that those whose first ranks exchange data are
/// near each other. The request must have a Fabric.
Order doubling_order_of_hosts(const ScheduleRequest& request);

}  // namespace q7x2
