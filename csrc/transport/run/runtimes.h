// All runtimes of this process, for code that reads their records.
//
// Usually there is only one. A new one takes over when the queue of shared memory is blocked;
// groups of the old one keep it.
#pragma once

#include <memory>
#include <vector>

namespace q7x2 {

class Runtime;

/// The newest is last; empty in a forked child that has made no group. The FlightArchive has the
/// records of runtimes that have ended.
std::vector<std::shared_ptr<Runtime>> all_runtimes();

}  // namespace q7x2
