// BusTraffic: what the calls of a group have moved between a device and pinned host memory.
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
};

}  // namespace q7x2
