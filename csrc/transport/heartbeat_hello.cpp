#include "transport/heartbeat_hello.h"

#include <cstring>

namespace q7x2 {
namespace {

constexpr uint32_t kMagic = 0x62683771;  // "q7hb"
constexpr uint32_t kVersion = 1;

struct Wire {
  uint32_t magic;
  uint32_t version;
  uint64_t sender;
  uint64_t receiver;
  uint32_t incarnation;
  uint32_t path;
  std::array<std::byte, 32> tag;
};
static_assert(sizeof(Wire) == HeartbeatHello::kBytes);

}  // namespace

HeartbeatHello::Bytes HeartbeatHello::encode() const {
  const Wire wire{kMagic, kVersion, sender, receiver, incarnation, path, tag};
  Bytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

std::optional<HeartbeatHello> HeartbeatHello::decode(std::span<const std::byte, kBytes> bytes) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kMagic || wire.version != kVersion) {
    return std::nullopt;
  }
  return HeartbeatHello{wire.sender, wire.receiver, wire.incarnation, wire.path, wire.tag};
}

}  // namespace q7x2
