// Memory for messages in transit, aligned for vector loads and reused.
#pragma once

#include <cstddef>
#include <vector>

namespace q7x2 {

/// Not thread-safe: its owner must serialise the calls.
class ScratchPool {
 public:
  struct Buffer {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };

  ScratchPool() = default;
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  /// At least `bytes` bytes, 64-byte aligned, contents undefined.
  Buffer take(size_t bytes);
  void release(Buffer buffer);
  /// Frees a buffer of any pool. Any thread.
  static void destroy(Buffer buffer);

 private:
  std::vector<Buffer> free_;
  size_t free_bytes_ = 0;
};

}  // namespace q7x2
