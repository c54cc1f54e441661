#pragma once

#include <chrono>

namespace q7x2 {

/// What Q7X2_SILENCE says, for how long a host may be silent: 2 s if it is unset, and as good as
/// for ever for 0. Throws Error(kInvalidArgument) unless it is 0, or a number of seconds from 0.1
/// on.
std::chrono::milliseconds silence_limit();

}  // namespace q7x2
