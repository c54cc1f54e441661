#include "transport/stream/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace q7x2 {
namespace {

// Where bytes go that nobody wants; what is in it does not matter.
constexpr size_t kSinkBytes = size_t{64} << 10;
std::byte* nowhere() {
  thread_local std::array<std::byte, kSinkBytes> sink;
  return sink.data();
}

}  // namespace

FrameReader::Outcome FrameReader::read(ByteStream& stream, FrameSink& sink, size_t most) {
  for (size_t total = 0; total < most;) {
    if (take(sink)) continue;
    // The rest of a chunk goes to its place, and what follows it into the buffer.
    std::array<iovec, 2> parts{};
    size_t count = 0;
    size_t direct = 0;
    const bool is_chunk = frame_ && frame_->kind == FrameKind::kChunk;
    if (is_chunk) {
      direct = body_.to != nullptr ? missing() : std::min(missing(), kSinkBytes);
      parts[count++] = {body_.to != nullptr ? body_.to + done_ : nowhere(), direct};
    }
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
    }
    if (direct == 0 || direct == missing()) {
      parts[count++] = {buffer_.data() + end_, buffer_.size() - end_};
    }
    const size_t asked = parts[0].iov_len + parts[1].iov_len;
    const auto got = stream.read({parts.data(), count});
    if (!got) return Outcome::kOver;
    total += *got;
    const size_t placed = std::min(*got, direct);
    done_ += placed;
    end_ += *got - placed;
    if (*got < asked) {
      while (take(sink)) {
      }
      return Outcome::kNothingMore;
    }
  }
  return Outcome::kMore;
}

bool FrameReader::take(FrameSink& sink) {
  if (!frame_) {
    if (end_ - begin_ < Frame::kHeaderBytes) return false;
    const auto header = std::span(buffer_).subspan(begin_).first<Frame::kHeaderBytes>();
    begin_ += Frame::kHeaderBytes;
    frame_ = Frame::decode(header);
    begin_body(sink);
  }
  const size_t here = std::min(missing(), end_ - begin_);
  if (frame_->kind != FrameKind::kChunk) {
    text_.append(reinterpret_cast<const char*>(buffer_.data()) + begin_, here);
  } else if (body_.to != nullptr) {
    std::memcpy(body_.to + done_, buffer_.data() + begin_, here);
  }
  done_ += here;
  begin_ += here;
  if (missing() > 0) return false;
  end_body(sink);
  return true;
}

void FrameReader::begin_body(FrameSink& sink) {
  done_ = 0;
  text_.clear();
  if (frame_->kind == FrameKind::kChunk) body_ = sink.place(*frame_);
}

void FrameReader::end_body(FrameSink& sink) {
  const Frame frame = *std::exchange(frame_, std::nullopt);
  if (frame.kind == FrameKind::kChunk) {
    const IncomingMessages::Body body = std::exchange(body_, {});
    sink.on_chunk(body);
  } else {
    sink.on_frame(frame, text_);
  }
}

void FrameReader::salvage(FrameSink& sink) {
  if (!frame_ || frame_->kind != FrameKind::kChunk || done_ == 0 || body_.to == nullptr) return;
  body_.range.last = body_.range.first + done_;
  sink.on_chunk(std::exchange(body_, {}));
  frame_.reset();
}

void FrameReader::release(const IncomingMessage& message) {
  if (body_.message.get() == &message && !body_.bounce) body_.to = nullptr;
}

}  // namespace q7x2
