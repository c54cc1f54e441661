// Statistics of a hook: bytes, CPU time by phase, and optionally a timeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <map>
#include <string>

namespace q7x2 {

struct HookStats {
  uint64_t steps = 0;
  /// had Inf or NaN in a reduced gradient, so the state did not change
  uint64_t skipped_steps = 0;
  uint64_t buckets = 0;
  uint64_t gradient_bytes = 0;                ///< size of the buckets
  uint64_t message_bytes = 0;                 ///< size of the inputs of collectives
  std::map<std::string, double> cpu_seconds;  ///< by phase, in the hook's thread
};

/// One phase or one collective of a bucket.
struct HookEvent {
  uint64_t step = 0;
  size_t bucket = 0;
  std::string name;  ///< name of a phase, or "collective"
  size_t lane = 0;   ///< for a "collective"
  double begin = 0;  ///< seconds of the monotonic clock
  double end = 0;
};

inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace q7x2
