// LivenessWatch: one source of news for the LivenessMonitor.
//
//   ProcessWatch   a process of this host
//   Heartbeat      a process of another host
//   PortCall       a call that is in progress to a process
#pragma once

#include <optional>
#include <string>

#include "transport/peer/peer_life.h"

namespace q7x2 {

/// What was found out about a process.
struct Finding {
  Evidence evidence;
  std::string reason;        ///< completes "rank 3 failed: ..."
  bool was_reached = false;  ///< whether it was alive after the watch began
  void* who = nullptr;       ///< the pointer that the monitor was given for it
};

class LivenessWatch {
 public:
  using TimePoint = PeerLife::TimePoint;

  virtual ~LivenessWatch() = default;
  /// To be called when one of its descriptors is ready.
  virtual std::optional<Finding> ready(TimePoint now) = 0;
  /// To be called about every `SilenceClock::period`, and when it is due.
  virtual std::optional<Finding> tick(TimePoint now) = 0;
  /// When `tick` must be called at the latest; max: at no particular time.
  virtual TimePoint due() const = 0;
};

}  // namespace q7x2
