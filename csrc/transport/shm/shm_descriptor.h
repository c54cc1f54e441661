// ShmDescriptor: one message in the mailbox of a ShmChannel, a cache line that another process
// writes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/task/host_message.h"

namespace q7x2 {

struct alignas(64) ShmDescriptor {
  std::atomic<uint32_t> number;  // 1 + its number in the mailbox; written last
  uint32_t length;
  uint64_t tag;
  uint32_t offset;  // in the arena
  uint16_t ticket;  // kNoTicket: the descriptor carries the bytes
  DescriptorKind kind;
  std::array<std::byte, HostMessage::kInlineBytes> carried;

  /// The arena of the sender, of `arena_bytes`, begins at `arena`. Every field is read once, and
  /// checked after that: the other process may change it at any time. Throws Error(kTransport)
  /// where the descriptor tells of memory that does not exist, or is of no kind that there is.
  HostMessage read(const std::byte* arena, size_t arena_bytes) const;
  /// All but the number.
  void write(const HostMessage& message, const std::byte* arena);
};
static_assert(sizeof(ShmDescriptor) == 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace q7x2
