// What comes over the connections of a path: hellos, and frames with all that follows from them at
// the receiver.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "format.h"
#include "transport/stream/frame_reader.h"
#include "transport/stream/incoming_messages.h"
#include "transport/stream/outgoing_messages.h"
#include "transport/stream/stream_hello.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kBounce = 4096;
constexpr size_t kRoom = 3000;

void append(std::string& bytes, const Frame& frame, std::string_view body = {}) {
  const Frame::Header header = frame.encode();
  bytes.append(reinterpret_cast<const char*>(header.data()), header.size()).append(body);
}

/// Some messages in chunks, and acks of what the receiver has sent.
std::string frames(Random& random) {
  std::string bytes;
  uint64_t number = 0;
  for (uint64_t i = 1 + random() % 4; i > 0; --i, ++number) {
    const uint64_t total = random() % 1000;
    const uint64_t tag = random() % 4;
    if (random() % 3 == 0) {
      append(bytes, {FrameKind::kEnvelope, static_cast<uint32_t>(total), number, tag, total, total},
             std::string(total, 'i'));
      continue;
    }
    append(bytes, {FrameKind::kEnvelope, 0, number, tag, total, total});
    for (uint64_t at = 0; at < total;) {
      const uint64_t size = std::min(total - at, 1 + random() % 400);
      append(bytes, {FrameKind::kChunk, static_cast<uint32_t>(size), number, at, total, total},
             std::string(size, 'c'));
      at += size;
    }
  }
  const std::vector<AckRange> ranges{{random() % 2, {0, 1 + random() % 500}}};
  append(bytes, {FrameKind::kAck, sizeof(AckRange), 0, 0, random() % 3, 2}, encode_ranges(ranges));
  append(bytes, {FrameKind::kGrant, 0, random() % 2});
  return bytes;
}

/// Gives out its bytes in pieces.
class Input final : public ByteStream {
 public:
  Input(std::string_view bytes, Random& random) : rest_(bytes), random_(random) {}

  int fd() const override { return -1; }
  std::optional<size_t> read(std::span<const iovec> into) override {
    if (rest_.empty()) return std::nullopt;
    size_t piece = std::min<size_t>(rest_.size(), 1 + random_() % 700);
    size_t moved = 0;
    for (const iovec& each : into) {
      const size_t size = std::min(piece - moved, each.iov_len);
      if (size > 0) std::memcpy(each.iov_base, rest_.data() + moved, size);
      moved += size;
    }
    rest_.remove_prefix(moved);
    return moved;
  }
  std::optional<size_t> write(std::span<const iovec>) override { return std::nullopt; }

 private:
  std::string_view rest_;
  Random& random_;
};

/// The two sides of a path, without its connections.
struct Path final : FrameSink {
  Path() {
    outgoing.set_bounce(kBounce);
    for (size_t size : {size_t{500}, size_t{800}}) {
      outgoing.send(&sent, 1, sent.get(), size);
      outgoing.take_envelope(1, 0, {});
    }
    for (int i = 0; i < 2; ++i) {
      memory[i] = std::make_unique<std::byte[]>(kRoom);
      matcher.receive(&memory[i], static_cast<uint64_t>(i), ~uint64_t{0}, memory[i].get(), kRoom);
    }
  }

  IncomingMessages::Body place(const Frame& chunk) override { return incoming.place(chunk); }
  void on_chunk(const IncomingMessages::Body& body) override { incoming.on_chunk(body); }
  void on_frame(const Frame& frame, std::string_view body) override {
    if (frame.kind == FrameKind::kEnvelope || frame.kind == FrameKind::kNotice)
      incoming.on_envelope(frame, body);
    if (frame.kind == FrameKind::kAck) outgoing.acknowledge(frame, decode_ranges(body), {});
    if (frame.kind == FrameKind::kGrant) outgoing.grant(frame.message);
  }

  StreamOptions options = [] {
    StreamOptions it;
    it.copied_message = 0;
    return it;
  }();
  OnStreamComplete on_complete = [](void*, StreamStatus status, size_t length, uint64_t) {
    require(status != StreamStatus::kOk || length <= kRoom, "a message longer than its place");
  };
  std::unique_ptr<std::byte[]> memory[2];
  std::unique_ptr<std::byte[]> sent = std::make_unique<std::byte[]>(800);
  StreamMatcher matcher{on_complete};
  FrameReader reader;
  IncomingMessages incoming{matcher, kBounce,
                            [this](const IncomingMessage& message) { reader.release(message); },
                            [] {}, [](const StreamNotice&) {}};
  OutgoingMessages outgoing{options, on_complete, [](uint64_t) {}};
};

bool read_frames(std::string_view input, Random& random) {
  Path path;
  Input stream(input, random);
  while (path.reader.read(stream, path, input.size() + 1) != FrameReader::Outcome::kOver) {
  }
  const auto ack = path.incoming.take_ack();
  require(ack.frame.message <= ack.frame.total, "envelopes come before their messages");
  require(ack.ranges.size() <= Frame::kMaxAckRanges, "an ack is too long");
  path.outgoing.close();
  return true;
}

const MessageKey kKey = JobSecret("a secret").key_to({2, {}});

std::string hello(Random& random) {
  const StreamHello it{random() % 4, random() % 4, random() % 3, random(), random(), random()};
  const auto bytes = it.encode(StreamHello::Turn::kCall, kKey);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool read_hello(std::string_view input, Random&) {
  StreamHello::Bytes bytes{};
  std::ranges::copy(std::as_bytes(std::span(input.substr(0, bytes.size()))), bytes.begin());
  require(!StreamHello::decode(bytes, StreamHello::Turn::kAnswer, kKey), "a call is an answer");
  const auto read = StreamHello::decode(bytes, StreamHello::Turn::kCall, kKey);
  if (!read) return false;
  require(read->encode(StreamHello::Turn::kCall, kKey) == bytes, "a hello was forged");
  return true;
}

}  // namespace

std::vector<Format> stream_formats() {
  return {{"stream frames", 10, frames, read_frames}, {"stream hello", 4, hello, read_hello}};
}

}  // namespace q7x2::fuzz
