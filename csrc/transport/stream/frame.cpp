#include "transport/stream/frame.h"

#include <cstring>

#include "base/error.h"

namespace q7x2 {
namespace {

struct Wire {
  uint32_t kind;
  uint32_t bytes;
  uint64_t message;
  uint64_t value;
  uint64_t total;
  uint64_t eager;
};
static_assert(sizeof(Wire) == Frame::kHeaderBytes);
static_assert(sizeof(AckRange) == 24);

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::kMismatch, std::string("a stream connection brought ") + what);
}

void check(bool condition, const char* what) {
  if (!condition) refuse(what);
}

void check_envelope(const Frame& frame) {
  check(frame.total <= Frame::kMaxMessage && frame.eager <= frame.total,
        "an envelope of an impossible length");
  check(frame.bytes == 0 || (frame.bytes == frame.total && frame.eager == frame.total &&
                             frame.bytes <= Frame::kMaxInline),
        "an envelope with a part of its message");
}

void check_chunk(const Frame& frame) {
  check(frame.bytes > 0 && frame.bytes <= Frame::kMaxChunk, "a chunk of an impossible length");
  check(frame.total <= Frame::kMaxMessage && frame.eager <= frame.total &&
            frame.value <= frame.total && frame.bytes <= frame.total - frame.value,
        "a chunk beyond its message");
}

void check_ack(const Frame& frame) {
  check(
      frame.bytes % sizeof(AckRange) == 0 && frame.bytes / sizeof(AckRange) <= Frame::kMaxAckRanges,
      "an ack of an impossible length");
}

}  // namespace

Frame::Header Frame::encode() const {
  const Wire wire{static_cast<uint32_t>(kind), bytes, message, value, total, eager};
  Header header;
  std::memcpy(header.data(), &wire, sizeof(wire));
  return header;
}

Frame Frame::decode(std::span<const std::byte, kHeaderBytes> header) {
  Wire wire;
  std::memcpy(&wire, header.data(), sizeof(wire));
  const Frame frame{static_cast<FrameKind>(wire.kind),
                    wire.bytes,
                    wire.message,
                    wire.value,
                    wire.total,
                    wire.eager};
  switch (frame.kind) {
    case FrameKind::kNotice:
      check(frame.total <= Frame::kMaxNotice, "a notice of an impossible length");
      [[fallthrough]];
    case FrameKind::kEnvelope:
      check_envelope(frame);
      return frame;
    case FrameKind::kChunk:
      check_chunk(frame);
      return frame;
    case FrameKind::kAck:
      check_ack(frame);
      return frame;
    case FrameKind::kGrant:
    case FrameKind::kPing:
    case FrameKind::kPong:
    case FrameKind::kBye:
      check(frame.bytes == 0 && frame.total == 0 && frame.eager == 0,
            "more than a frame of its kind has");
      return frame;
  }
  refuse("a frame of an unknown kind");
}

std::string encode_ranges(std::span<const AckRange> ranges) {
  return {reinterpret_cast<const char*>(ranges.data()), ranges.size_bytes()};
}

std::vector<AckRange> decode_ranges(std::string_view body) {
  check(body.size() % sizeof(AckRange) == 0, "an ack of an impossible length");
  std::vector<AckRange> ranges(body.size() / sizeof(AckRange));
  if (!ranges.empty()) std::memcpy(ranges.data(), body.data(), body.size());
  for (const AckRange& each : ranges) {
    check(each.range.first < each.range.last && each.range.last <= Frame::kMaxMessage,
          "an ack of an impossible range");
  }
  return ranges;
}

}  // namespace q7x2
