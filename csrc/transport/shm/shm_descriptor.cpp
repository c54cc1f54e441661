#include "transport/shm/shm_descriptor.h"

#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

/// Reads memory that another process may change, exactly once.
template <typename T>
T read_once(const T& value) {
  return *static_cast<const volatile T*>(&value);
}

}  // namespace

HostMessage ShmDescriptor::read(const std::byte* arena, size_t arena_bytes) const {
  HostMessage message;
  message.tag = read_once(tag);
  message.length = read_once(length);
  message.ticket = read_once(ticket);
  message.kind = read_once(kind);
  if (message.kind > DescriptorKind::kPiece) {
    throw Error(ErrorCode::kTransport, "a message in shared memory is of an unknown kind");
  }
  if (message.ticket == HostMessage::kNoTicket) {
    if (message.length > HostMessage::kInlineBytes) {
      throw Error(ErrorCode::kTransport, "a message in shared memory carries " +
                                             std::to_string(message.length) + " bytes");
    }
    message.carried = carried;
    return message;
  }
  const size_t begin = read_once(offset);
  if (message.ticket >= HostMessage::kTickets || begin > arena_bytes ||
      message.length > arena_bytes - begin) {
    throw Error(ErrorCode::kTransport, "a message in shared memory is outside of it");
  }
  message.staged = arena + begin;
  return message;
}

void ShmDescriptor::write(const HostMessage& message, const std::byte* arena) {
  tag = message.tag;
  length = message.length;
  ticket = message.ticket;
  kind = message.kind;
  if (message.staged != nullptr) {
    offset = static_cast<uint32_t>(message.staged - arena);
  } else {
    carried = message.carried;
  }
}

}  // namespace q7x2
