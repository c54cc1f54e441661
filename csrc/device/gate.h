// Gate: a stream stops at it until the host opens it, once or in several steps.
//
// The stream waits for a word of pinned host memory to reach a value. A flag counts the steps that
// were opened, so it serves the next gate as soon as this one is open: a stream that is still to
// come here finds a value that is large enough.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/accelerators.h"

namespace q7x2 {

class Gate {
 public:
  /// Closed. Takes a flag; see `has_flag`.
  explicit Gate(uint32_t steps = 1);
  /// Opens it.
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// All that comes to `stream` from now on waits until `step`, counted from 0, is open.
  void stop(const StreamCalls& calls, void* stream, uint32_t step);
  /// Opens the first `steps` steps. Any thread, any number of times, in any order. Takes no lock.
  void open(uint32_t steps) noexcept;
  /// Opens all steps. Any thread, any number of times. Takes no lock of a device.
  void open() noexcept;

  /// False: there is none for another gate, give more. Flags are never given back.
  static bool has_flag();
  /// `memory`: pinned, with room for `count` flags of kFlagBytes.
  static void add_flags(std::byte* memory, size_t count);
  static constexpr size_t kFlagBytes = 64;

 private:
  uint32_t* const flag_;
  const uint32_t closed_;  // what the flag says while no step is open
  const uint32_t steps_;
  std::atomic<bool> is_open_{false};
};

}  // namespace q7x2
