// BusTraffic: counts the calls of a group on tensors of a device, and the bytes copied between the
// device and pinned host memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace q7x2 {

struct BusTraffic {
  /// Any thread. Bytes are counted when their copies are enqueued.
  struct Path {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> to_host{0};
    std::atomic<uint64_t> to_device{0};
  };
  Path staged;  ///< tensors are copied
  Path coded;   ///< a device encodes and decodes, and only messages are copied
  Path direct;  ///< messages are in memory of devices; nothing is copied
};

}  // namespace q7x2
