// Schedules as JSON: what `q7x2 plan export` writes, and what users write themselves.
//
//   {
//     "format": 1,
//     "collective": "all_reduce",
//     "ranks": 2,
//     "algorithm": "exchange",
//     "part_weights": [1],
//     "plans": [
//       [
//         {"send": "out[0]", "to": 1},
//         {"recv": "scratch[0]", "from": 1, "length": "out[0]"},
//         {"reduce": ["out[0]", "scratch[0]"], "into": "out[0]", "final": true, "after": [0, 1]}
//       ],
//       ...
//
// An op waits for those of its Plan that "after" names, by their numbers, which come before it.
// docs/own_plans.md has all fields.
#pragma once

#include <string>
#include <string_view>

#include "plan/ir/schedule.h"

namespace q7x2 {

/// One op in a line. Throws Error(kInvalidArgument) where the Schedule has coded blocks or helpers.
std::string to_json(const Schedule& schedule);

/// The Schedule of a text, which `check_schedule` has proven. Its algorithm is "file:NAME@DIGEST"
/// with a digest of all that it does, so that ranks with different texts notice. Throws
/// Error(kInvalidArgument) that names the place in the text, or with what the checker says.
Schedule schedule_from_json(std::string_view text);

}  // namespace q7x2
