// The network as algorithms see it that draw their trees from the Fabric.
#pragma once

#include <vector>

#include "fabric/fabric.h"
#include "fabric/routes.h"
#include "plan/ir/schedule.h"
#include "plan/ir/tree.h"

namespace q7x2 {

/// The request's Fabric; one rank a host behind one switch where nothing is known.
Fabric fabric_or_uniform(const ScheduleRequest& request);

/// Rates of the resources of `routes`, in bytes a second. Unknown ones, and windows of connections,
/// which most messages fit into, are as fast as the fastest known one.
std::vector<double> known_rates(const Routes& routes);

/// What a host can send to and receive from all the others at once, in bytes a second; infinite
/// where nothing limits it.
double rate_of_host(const Fabric& fabric, int host);

/// A tree of hosts as one of ranks: on each host `speaker[host]` takes its place, and the others
/// stand below it.
Tree tree_of_ranks(const Tree& hosts, const std::vector<int>& speaker, const Fabric& fabric);

}  // namespace q7x2
