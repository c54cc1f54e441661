// OutputGate: lets a stream copy the results of a call to a device strip by strip, each when it is
// final.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/gate.h"
#include "device/strips.h"

namespace q7x2 {

class OutputGate {
 public:
  /// Needs a flag: see Gate.
  explicit OutputGate(const Strips& strips)
      : strips_(strips), gate_(static_cast<uint32_t>(strips.count())) {}

  const Strips& strips() const { return strips_; }
  /// Work that is enqueued on `stream` after this waits until strip `k` is final.
  void stop(const StreamCalls& calls, void* stream, size_t k) {
    gate_.stop(calls, stream, static_cast<uint32_t>(k));
  }
  /// The first `bytes` bytes of each region are final. Any thread; takes no lock.
  void finish(size_t bytes) noexcept { gate_.open(static_cast<uint32_t>(strips_.within(bytes))); }
  /// The call has ended, successfully or not. Any thread, any number of times.
  void open() noexcept { gate_.open(); }

 private:
  const Strips strips_;
  Gate gate_;
};

}  // namespace q7x2
