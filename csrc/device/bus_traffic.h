// BusTraffic: the calls of a group on tensors of a device, and what they have moved between it and
// pinned host memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

struct BusTraffic {
  /// Any thread. Bytes count when their copies are enqueued.
  struct Path {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> to_host{0};
    std::atomic<uint64_t> to_device{0};
  };
  Path staged;  ///< tensors pass
  Path coded;   ///< a device encodes and decodes, and only messages pass
  Path direct;  ///< messages are memory of devices; nothing passes
};

}  // namespace q7x2
