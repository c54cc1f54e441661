// TurnMeter: the share of the time for which this rank had a processor while it wanted one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/thread_turns.h"

namespace q7x2 {

class TurnMeter {
 public:
  /// In nanoseconds.
  struct Turns {
    int64_t ran = 0;
    int64_t waited = 0;
  };

  /// The difference from the thread's last totals. The first call for a thread returns zeros.
  Turns take(const std::optional<ThreadTurns>& total) {
    if (!total) return {};
    const auto [known, is_new] = totals_.try_emplace(total->thread, *total);
    const ThreadTurns last = std::exchange(known->second, *total);
    // Another thread may have the number of a thread that has ended.
    if (is_new || total->ran < last.ran || total->waited < last.waited) return {};
    return {total->ran - last.ran, total->waited - last.waited};
  }

 private:
  std::map<int, ThreadTurns> totals_;  // by thread
};

}  // namespace q7x2
