#include "transport/run/scratch_pool.h"

#include <algorithm>
#include <bit>
#include <new>

namespace q7x2 {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = 256;
// Bytes that are kept for reuse; the rest is returned to the system.
constexpr size_t kMaxFreeBytes = size_t{64} << 20;

}  // namespace

ScratchPool::~ScratchPool() {
  for (const Buffer& buffer : free_) {
    destroy(buffer);
  }
}

ScratchPool::Buffer ScratchPool::take(size_t bytes) {
  // Powers of two, so that the buffers of one call fit the next call.
  const size_t size = std::bit_ceil(std::max(bytes, kSmallest));
  // Last in, first out: the warmest memory.
  for (size_t i = free_.size(); i-- > 0;) {
    if (free_[i].bytes == size) {
      const Buffer buffer = free_[i];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      free_bytes_ -= size;
      return buffer;
    }
  }
  return {static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment})), size};
}

void ScratchPool::release(Buffer buffer) {
  if (buffer.data == nullptr) {
    return;
  }
  if (free_bytes_ + buffer.bytes > kMaxFreeBytes) {
    destroy(buffer);
    return;
  }
  free_bytes_ += buffer.bytes;
  free_.push_back(buffer);
}

void ScratchPool::destroy(Buffer buffer) {
  ::operator delete (buffer.data, std::align_val_t{kAlignment});
}

}  // namespace q7x2
