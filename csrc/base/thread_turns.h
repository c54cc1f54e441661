// How much of the time that a thread wanted a processor it had one.
#pragma once

#include <cstdint>
#include <optional>

namespace q7x2 {

/// What the kernel counts of a thread since it began, in nanoseconds. Other threads, other
/// processes and a quota of processor time make it wait.
struct ThreadTurns {
  int thread = 0;
  int64_t ran = 0;
  int64_t waited = 0;  ///< ready to run
};

/// Of the calling thread. Takes some microseconds. Nothing if the kernel does not count it.
std::optional<ThreadTurns> turns_of_this_thread();

}  // namespace q7x2
