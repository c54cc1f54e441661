// FrameWriter: the frames that wait to be written to one connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "transport/stream/byte_stream.h"
#include "transport/stream/frame.h"

namespace q7x2 {

class FrameWriter {
 public:
  void add(const Frame& frame, std::string body = {});
  /// The body is memory of a message. Until it is written it must stay, or `release` be called.
  void add(const Frame& frame, const std::byte* body);
  /// The memory of a message is not referred to any more: frames that have not begun are taken
  /// back, and the rest of one that has is copied.
  void release(uint64_t message);

  /// Writes what the connection takes. False: it is over.
  bool flush(ByteStream& stream);
  bool is_empty() const { return waiting_.empty(); }
  /// Bytes that wait.
  size_t bytes() const { return bytes_; }

 private:
  struct Waiting {
    Frame::Header header;
    std::string own;
    const std::byte* body = nullptr;  // a message's; null: `own`
    size_t size = 0;                  // length of the body
    uint64_t message = 0;
    size_t done = 0;  // header and body
  };

  void advance(size_t count);

  std::deque<Waiting> waiting_;
  size_t bytes_ = 0;
};

}  // namespace q7x2
