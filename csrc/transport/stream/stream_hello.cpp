#include "transport/stream/stream_hello.h"

#include <string_view>

#include "transport/trust/proven_record.h"

namespace q7x2 {
namespace {

constexpr uint32_t kMagic = 0x74733771;  // "q7st"
constexpr uint32_t kVersion = 2;

struct Wire {
  uint32_t magic;
  uint32_t version;
  StreamHello hello;
  Proof proof;  // proves what precedes it
};
static_assert(sizeof(Wire) == StreamHello::kBytes);

std::string_view kind_of(StreamHello::Turn turn) {
  switch (turn) {
    case StreamHello::Turn::kCall:
      return "stream call";
    case StreamHello::Turn::kAnswer:
      return "stream answer";
    case StreamHello::Turn::kBreakNotice:
      break;
  }
  return "stream break notice";
}

}  // namespace

StreamHello::Bytes StreamHello::encode(Turn turn, const MessageKey& key) const {
  return with_proof(Wire{kMagic, kVersion, *this, {}}, key, kind_of(turn));
}

std::optional<StreamHello> StreamHello::decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                               const MessageKey& key) {
  const std::optional<Wire> wire = proven<Wire>(bytes, key, kind_of(turn));
  if (!wire || wire->magic != kMagic || wire->version != kVersion) return std::nullopt;
  return wire->hello;
}

}  // namespace q7x2
