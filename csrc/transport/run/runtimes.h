// All runtimes of this process, for whoever reads their records.
//
// There is one as a rule. Another one takes over when the queue of shared memory is blocked, and
// groups that have the former one keep it.
#pragma once

#include <memory>
#include <vector>

namespace q7x2 {

class Runtime;

/// The newest last; none in a forked child that has made no group. What those hold that have ended
/// is in the FlightArchive.
std::vector<std::shared_ptr<Runtime>> all_runtimes();

}  // namespace q7x2
