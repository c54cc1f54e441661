// What the ranks of a group ask and tell each other about their calls: how far each is, and whether
// they have made the same one (CallAgreement).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/peer/control.h"

namespace q7x2 {

/// A disagreement that the other rank is asked about.
struct Disagreement {
  int peer;
  uint64_t sequence;
  std::string call;
  std::chrono::steady_clock::time_point due;
};

/// How far another rank is with a collective.
struct CallProgress {
  uint64_t sequence;
  CallState state;
  int waits_for;  ///< -1: nobody knows
  bool operator==(const CallProgress&) const = default;
  /// It waits for a rank other than the one that asks.
  bool names_another(int asker) const {
    return waits_for >= 0 && waits_for != asker && state != CallState::kComplete;
  }
};

/// What a rank has said of that.
struct HeardProgress {
  CallProgress progress;
  std::chrono::steady_clock::time_point at;
};

/// What a rank was asked and has not answered.
struct UnansweredInquiries {
  std::chrono::steady_clock::time_point since;
  size_t inquiries = 0;
};

}  // namespace q7x2
