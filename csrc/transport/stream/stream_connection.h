// StreamConnection: one open connection of a path: its bytes, its frames, what the kernel says of
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/stream/byte_stream.h"
#include "transport/stream/event_loop.h"
#include "transport/stream/frame_reader.h"
#include "transport/stream/frame_writer.h"

namespace q7x2 {

/// The path. It must not close a connection from inside of these.
class ConnectionOwner : public FrameSink {
 public:
  /// A connection has brought something, has room again, or is over.
  virtual void on_activity() = 0;

 protected:
  ~ConnectionOwner() = default;
};

class StreamConnection final : public EventHandler {
 public:
  /// `id`: unique in the path.
  StreamConnection(uint64_t id, std::unique_ptr<ByteStream> stream, EventLoop& loop,
                   ConnectionOwner& owner);

  uint64_t id() const { return id_; }
  int socket() const { return stream_->fd(); }
  FrameReader& reader() { return reader_; }
  FrameWriter& writer() { return writer_; }
  /// It must be closed. `is_bad`: because of a bad frame.
  bool is_over() const { return is_over_; }
  bool is_bad() const { return is_bad_; }
  void end() { is_over_ = true; }
  /// Something was read since the last call.
  bool take_heard() { return std::exchange(was_heard_, false); }

  /// What the kernel says, at most `age` old.
  const TcpState& tcp(StreamTime now, StreamDuration age);
  /// Bytes that may be handed over now: what the congestion window takes. To a near host, also what
  /// it will take in the next moment.
  size_t room(StreamTime now, StreamDuration age);
  /// Writes what waits and can be written.
  void flush();
  /// To be called now and then. Returns for how many calls in a row something waits for the other
  /// kernel, which has been silent for longer than `limit`.
  int count_silence(StreamTime now, StreamDuration limit);
  /// Nothing waits, here or in the kernel.
  bool is_drained();

  void on_ready(uint32_t events) override;
  /// Frames that were read together with the hello.
  void read_what_came_early() {
    if (stream_->has_unread()) on_ready(EPOLLIN);
  }

 private:
  const uint64_t id_;
  const std::unique_ptr<ByteStream> stream_;
  ConnectionOwner& owner_;
  FrameReader reader_;
  FrameWriter writer_;
  EventEntry entry_;  // removed before the stream is closed
  TcpState tcp_;
  StreamTime tcp_at_{};
  size_t written_ = 0;  // bytes since then
  bool is_over_ = false;
  bool is_bad_ = false;
  bool was_heard_ = false;
  int silences_ = 0;
};

}  // namespace q7x2
