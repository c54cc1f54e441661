// OutputGate: lets the results of a call pass to a device strip by strip, each when it is final.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/gate.h"
#include "device/strips.h"

namespace q7x2 {

class OutputGate {
 public:
  /// See Gate about flags.
  explicit OutputGate(const Strips& strips)
      : strips_(strips), gate_(static_cast<uint32_t>(strips.count())) {}

  const Strips& strips() const { return strips_; }
  /// All that comes to `stream` from now on waits until strip `k` is final.
  void stop(const StreamCalls& calls, void* stream, size_t k) {
    gate_.stop(calls, stream, static_cast<uint32_t>(k));
  }
  /// The first `bytes` of each region are final. Any thread; takes no lock.
  void finish(size_t bytes) noexcept { gate_.open(static_cast<uint32_t>(strips_.within(bytes))); }
  /// The call is over, whether it succeeded or not. Any thread, any number of times.
  void open() noexcept { gate_.open(); }

 private:
  const Strips strips_;
  Gate gate_;
};

}  // namespace q7x2
