#include "transport/peer/heartbeat_hello.h"

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <string_view>

#include "transport/trust/proven_record.h"

namespace q7x2 {
namespace {

constexpr uint32_t kMagic = 0x62683771;  // "q7hb"
constexpr uint32_t kVersion = 3;

struct Wire {
  uint32_t magic;
  uint32_t version;
  uint64_t sender;
  uint64_t receiver;
  uint32_t incarnation;
  uint32_t topic;
  uint64_t number;
  Proof proof;  // authenticates the fields above
};
static_assert(sizeof(Wire) == HeartbeatHello::kBytes);

std::string_view kind_of(HeartbeatHello::Turn turn) {
  constexpr std::array<std::string_view, 3> kKinds{"heartbeat call", "heartbeat answer",
                                                   "heartbeat left"};
  return kKinds[static_cast<size_t>(turn)];
}

}  // namespace

uint64_t HeartbeatHello::next_number() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

HeartbeatHello::Bytes HeartbeatHello::encode(Turn turn, const MessageKey& key) const {
  const Wire wire{kMagic, kVersion, sender, receiver, incarnation, static_cast<uint32_t>(topic),
                  number, {}};
  return with_proof(wire, key, kind_of(turn));
}

std::optional<HeartbeatHello> HeartbeatHello::decode(std::span<const std::byte, kBytes> bytes,
                                                     Turn turn, const MessageKey& key) {
  const std::optional<Wire> wire = proven<Wire>(bytes, key, kind_of(turn));
  if (!wire || wire->magic != kMagic || wire->version != kVersion ||
      wire->topic > static_cast<uint32_t>(Topic::kAdmit)) {
    return std::nullopt;
  }
  return HeartbeatHello{wire->sender, wire->receiver, wire->incarnation,
                        static_cast<Topic>(wire->topic), wire->number};
}

std::optional<HeartbeatHello> say_call(int socket, uint64_t caller, const HeartbeatTarget& target) {
  const HeartbeatHello hello{caller, target.process, target.incarnation, target.topic,
                             HeartbeatHello::next_number()};
  const auto bytes = hello.encode(HeartbeatHello::Turn::kCall, target.key);
  const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size()) ? std::optional(hello) : std::nullopt;
}

}  // namespace q7x2
