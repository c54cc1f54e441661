// What the ranks of a group ask and tell each other about their calls: the progress of each, and
// whether they have made the same call (CallAgreement).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/peer/control.h"

namespace q7x2 {

/// A disagreement about which the other rank was asked.
struct Disagreement {
  int peer;
  uint64_t sequence;
  std::string call;
  std::chrono::steady_clock::time_point due;
};

/// The progress of another rank in a collective.
struct CallProgress {
  uint64_t sequence;
  CallState state;
  int waits_for;  ///< the rank that it waits for; -1: unknown
  bool operator==(const CallProgress&) const = default;
  /// Whether it waits for a rank other than the one that asks.
  bool names_another(int asker) const {
    return waits_for >= 0 && waits_for != asker && state != CallState::kComplete;
  }
};

/// The last answer of a rank, and when it arrived.
struct HeardProgress {
  CallProgress progress;
  std::chrono::steady_clock::time_point at;
};

/// The inquiries that a rank has not answered.
struct UnansweredInquiries {
  std::chrono::steady_clock::time_point since;
  size_t inquiries = 0;
};

}  // namespace q7x2
