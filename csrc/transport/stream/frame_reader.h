// FrameReader: takes the bytes of one connection apart into frames. The body of a chunk is read
// straight to where it belongs.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "transport/stream/byte_stream.h"
#include "transport/stream/frame.h"
#include "transport/stream/incoming_messages.h"

namespace q7x2 {

/// Who gets the frames. May throw Error(kMismatch), which ends the connection.
class FrameSink {
 public:
  virtual IncomingMessages::Body place(const Frame& chunk) = 0;
  virtual void on_chunk(const IncomingMessages::Body& body) = 0;
  /// Any other frame.
  virtual void on_frame(const Frame& frame, std::string_view body) = 0;

 protected:
  ~FrameSink() = default;
};

class FrameReader {
 public:
  enum class Outcome { kNothingMore, kMore, kOver };

  /// Reads about `most` bytes. kMore: there may be more. Throws Error(kMismatch) for a bad frame.
  Outcome read(ByteStream& stream, FrameSink& sink, size_t most);
  /// The connection broke: what has come of a chunk is given to `sink`.
  void salvage(FrameSink& sink);
  /// The place of this message is not ours any more.
  void release(const IncomingMessage& message);

 private:
  /// Takes what `buffer_` has. False: it needs more.
  bool take(FrameSink& sink);
  void begin_body(FrameSink& sink);
  void end_body(FrameSink& sink);
  size_t missing() const { return frame_->bytes - done_; }

  std::array<std::byte, 8192> buffer_;
  size_t begin_ = 0;  // where its contents begin
  size_t end_ = 0;
  std::optional<Frame> frame_;   // whose body is read
  size_t done_ = 0;              // bytes of it
  IncomingMessages::Body body_;  // a chunk's
  std::string text_;             // any other frame's
};

}  // namespace q7x2
