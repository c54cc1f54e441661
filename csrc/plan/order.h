// The order in which algorithms line up the ranks: neighbours are near.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace q7x2 {

/// All ranks by rack, host and rank, so that a walk along them enters and leaves each rack and each
/// host once; by rank alone where nothing is known of the hosts. Equal on all ranks.
std::vector<int> near_order(const PlanRequest& request);

/// The same walk begun at `first`: it, the others of its host, the others of its rack, the rest.
std::vector<int> near_order_from(const PlanRequest& request, int first);

/// Where `rank` stands in `order`.
int index_in(const std::vector<int>& order, int rank);

}  // namespace q7x2
