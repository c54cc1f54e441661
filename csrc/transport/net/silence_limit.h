#pragma once

#include <chrono>

namespace q7x2 {

/// How long a host may be silent, from Q7X2_SILENCE: 2 s if it is unset, and practically for ever
/// if it is 0. Throws Error(kInvalidArgument) unless it is 0 or a number of seconds of at least
/// 0.1.
std::chrono::milliseconds silence_limit();

}  // namespace q7x2
