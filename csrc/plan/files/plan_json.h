// Schedules as JSON, written by `q7x2 plan export` or by users.
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
// An op waits for the earlier ops of its Plan that "after" lists by number. docs/own_plans.md
// describes all fields.
#pragma once

#include <string>
#include <string_view>

#include "plan/ir/schedule.h"

namespace q7x2 {

/// One op per line. Throws Error(kInvalidArgument) if the Schedule has coded blocks or helpers.
std::string to_json(const Schedule& schedule);

/// Parses a Schedule and proves it with `check_schedule`. Its algorithm is named
/// "file:NAME@DIGEST", with a digest of everything that it does, so that ranks with different texts
/// notice. Throws Error(kInvalidArgument), with the position in the text or with the checker's
/// message.
Schedule schedule_from_json(std::string_view text);

}  // namespace q7x2
