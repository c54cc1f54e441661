// The Schedules that a user gives in `Q7X2_PLAN`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/ir/schedule.h"

namespace q7x2 {

using OwnPlans = std::vector<std::shared_ptr<const Schedule>>;

/// Reads the files in a list with colons between them; plan_json.h describes the format. Throws
/// Error(kInvalidArgument), with the name of the file, also if two are for the same calls.
OwnPlans read_plan_files(const std::string& list);
/// Those of the environment variable; empty if it is not set.
OwnPlans plan_files_of_environment();

/// The Schedule for a call; null if there is none.
std::shared_ptr<const Schedule> own_plan_for(const OwnPlans& plans, Collective collective,
                                             int world_size, int root);
/// The names of those for a group of `world_size` ranks, with commas.
std::string names_of(const OwnPlans& plans, int world_size);

}  // namespace q7x2
