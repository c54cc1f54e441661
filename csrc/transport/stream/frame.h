// Frames: what travels on the connections of a path.
//
//   envelope   a message's number, tag and length, and how much of it comes without being asked
//              for; all of a short one lies inside
//   notice     the envelope of a message that no receive waits for
//   chunk      some bytes of a message
//   ack        what has arrived and what has been matched: numbers below which all is, and ranges
//   grant      the rest of a message may come, too
//   ping       asks for a pong: is the path alive
//   bye        the sender will send nothing more
//
// A frame is a header of 40 bytes and a body of `bytes` bytes. docs/wire_format.md has the table.
// A frame is checked by itself here; whether it fits the state of its path is for the receiver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/stream/range_set.h"

namespace q7x2 {

enum class FrameKind : uint32_t {
  kEnvelope = 1,
  kChunk,
  kAck,
  kGrant,
  kPing,
  kPong,
  kBye,
  kNotice
};

struct Frame {
  static constexpr size_t kHeaderBytes = 40;
  static constexpr size_t kMaxInline = size_t{64} << 10;
  static constexpr size_t kMaxChunk = size_t{1} << 20;
  static constexpr size_t kMaxAckRanges = 512;
  static constexpr uint64_t kMaxMessage = uint64_t{1} << 48;
  static constexpr uint64_t kMaxNotice = uint64_t{64} << 20;
  using Header = std::array<std::byte, kHeaderBytes>;

  FrameKind kind = FrameKind::kPing;
  uint32_t bytes = 0;    ///< length of the body
  uint64_t message = 0;  ///< its number; ack: all below it have arrived whole
  uint64_t value = 0;  ///< envelope: tag; notice: topic; chunk: offset; ack: bytes released so far;
                       ///< ping: number
  uint64_t total = 0;  ///< envelope, chunk: length; ack: all envelopes below it have arrived
  uint64_t eager = 0;  ///< envelope, chunk: leading bytes that come without a grant; ack: how
                       ///< many connections the sender of the ack wants

  Header encode() const;
  /// Throws Error(kMismatch) for what cannot be a frame.
  static Frame decode(std::span<const std::byte, kHeaderBytes> header);

  bool operator==(const Frame&) const = default;
};

/// Bytes of one message that have arrived.
struct AckRange {
  uint64_t message = 0;
  ByteRange range;

  bool operator==(const AckRange&) const = default;
};

/// The body of an ack.
std::string encode_ranges(std::span<const AckRange> ranges);
/// Throws Error(kMismatch) for an empty range, or one beyond the longest message.
std::vector<AckRange> decode_ranges(std::string_view body);

}  // namespace q7x2
