// ShmDescriptor: one message in the mailbox of a ShmChannel: a cache line that another process
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

  /// `arena`: start of the sender's arena, which has `arena_bytes` bytes. Reads every field once,
  /// and checks it after that, because the other process may change it at any time. Throws
  /// Error(kTransport) if the descriptor refers to memory that does not exist, or has an unknown
  /// kind.
  HostMessage read(const std::byte* arena, size_t arena_bytes) const;
  /// Writes all fields except `number`.
  void write(const HostMessage& message, const std::byte* arena);
};
static_assert(sizeof(ShmDescriptor) == 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace q7x2
