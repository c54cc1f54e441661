// Loads: how many bytes the Plans of a group move, per rank and per resource of a Fabric.
#pragma once

#include <span>
#include <vector>

#include "fabric/routes.h"
#include "plan/ir/plan.h"

namespace q7x2 {

/// In units of B, the bytes of the call: of the whole buffer for flat collectives, of one part for
/// the others, where all parts are taken to be equal. Sums over whole Plans.
struct Loads {
  std::vector<double> sent;       ///< by rank
  std::vector<double> received;   ///< by rank
  std::vector<double> resources;  ///< as Routes::resources(); empty without a Fabric
  std::vector<double> scratch;    ///< held at once for one slice, by rank
};

/// `plans[r]` is rank r's Plan. `routes`: of the same ranks, or null.
Loads measure_loads(std::span<const Plan> plans, const Routes* routes);

}  // namespace q7x2
