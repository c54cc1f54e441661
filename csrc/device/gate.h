// Gate: stops a stream until the host opens the gate, at once or in several steps.
//
// The stream waits until a word of pinned host memory, the flag, reaches a value. The flag counts
// the steps that were opened. So it can serve the next gate as soon as this one is open: a stream
// that arrives at this gate later finds a value that is large enough.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/accelerators.h"

namespace q7x2 {

class Gate {
 public:
  /// A closed gate. Takes a flag; requires `has_flag`.
  explicit Gate(uint32_t steps = 1);
  /// Opens the gate.
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Work that is enqueued on `stream` after this waits until step `step`, counted from 0, is open.
  void stop(const StreamCalls& calls, void* stream, uint32_t step);
  /// Opens the first `steps` steps. Any thread, any number of times, in any order. Takes no lock.
  void open(uint32_t steps) noexcept;
  /// Opens all steps. Any thread, any number of times. Takes no lock of a device.
  void open() noexcept;

  /// Whether there is a flag for another gate; if not, call `add_flags`. Flags are never given
  /// back.
  static bool has_flag();
  /// `memory`: pinned, with room for `count` flags of kFlagBytes bytes.
  static void add_flags(std::byte* memory, size_t count);
  static constexpr size_t kFlagBytes = 64;

 private:
  uint32_t* const flag_;
  const uint32_t closed_;  // the value of the flag while no step is open
  const uint32_t steps_;
  std::atomic<bool> is_open_{false};
};

}  // namespace q7x2
