// The share of the time for which a thread had a processor while it wanted one.
#pragma once

#include <cstdint>
#include <optional>

namespace q7x2 {

/// The kernel's counters of a thread since its start, in nanoseconds. A thread waits because of
/// other threads, other processes and a quota of processor time.
struct ThreadTurns {
  int thread = 0;
  int64_t ran = 0;
  int64_t waited = 0;  ///< ready to run, without a processor
};

/// Counters of the calling thread. Takes some microseconds. Nothing if the kernel does not count
/// them.
std::optional<ThreadTurns> turns_of_this_thread();

}  // namespace q7x2
