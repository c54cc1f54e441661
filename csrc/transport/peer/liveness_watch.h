// LivenessWatch: one thing that the LivenessMonitor waits for news from.
//
//   ProcessWatch   a process of this host
//   Heartbeat      a process of another host
//   PortCall       what is on its way to a process
#pragma once

#include <optional>
#include <string>

#include "transport/peer/peer_life.h"

namespace q7x2 {

/// What was found of a process.
struct Finding {
  Evidence evidence;
  std::string reason;        ///< completes "rank 3 failed: ..."
  bool was_reached = false;  ///< it was alive after the watch began
  void* who = nullptr;       ///< what the monitor was told to call it
};

class LivenessWatch {
 public:
  using TimePoint = PeerLife::TimePoint;

  virtual ~LivenessWatch() = default;
  /// One of its descriptors is ready.
  virtual std::optional<Finding> ready(TimePoint now) = 0;
  /// To be called about every `SilenceClock::period`, and when it is due.
  virtual std::optional<Finding> tick(TimePoint now) = 0;
  /// When `tick` must be called at the latest; max: it does not matter.
  virtual TimePoint due() const = 0;
};

}  // namespace q7x2
