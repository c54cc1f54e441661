#include "transport/stream/stream_hello.h"

#include <cstring>
#include <string_view>

#include "base/crypto.h"

namespace q7x2 {
namespace {

constexpr uint32_t kMagic = 0x74733771;  // "q7st"
constexpr uint32_t kVersion = 1;

struct Wire {
  uint32_t magic;
  uint32_t version;
  StreamHello hello;
  Proof proof;  // proves what precedes it
};
static_assert(sizeof(Wire) == StreamHello::kBytes);

constexpr size_t kProofAt = offsetof(Wire, proof);

Proof proof_of(std::span<const std::byte, StreamHello::kBytes> bytes, StreamHello::Turn turn,
               const MessageKey& key) {
  const bool is_call = turn == StreamHello::Turn::kCall;
  return prove(key, is_call ? "stream call" : "stream answer", bytes.first(kProofAt));
}

}  // namespace

StreamHello::Bytes StreamHello::encode(Turn turn, const MessageKey& key) const {
  const Wire wire{kMagic, kVersion, *this, {}};
  Bytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  const Proof proof = proof_of(bytes, turn, key);
  std::memcpy(bytes.data() + kProofAt, proof.data(), proof.size());
  return bytes;
}

std::optional<StreamHello> StreamHello::decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                               const MessageKey& key) {
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (!equal_in_constant_time(wire.proof, proof_of(bytes, turn, key)) || wire.magic != kMagic ||
      wire.version != kVersion) {
    return std::nullopt;
  }
  return wire.hello;
}

}  // namespace q7x2
