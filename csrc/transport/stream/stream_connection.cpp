#include "transport/stream/stream_connection.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace q7x2 {
namespace {

constexpr size_t kReadAtOnce = size_t{512} << 10;
// To a host that is nearer, a little may wait in the kernel: it is gone before the next look.
constexpr std::chrono::milliseconds kNear{20};
constexpr std::chrono::milliseconds kMoment{1};
constexpr size_t kMostAhead = size_t{256} << 10;

}  // namespace

StreamConnection::StreamConnection(uint64_t id, std::unique_ptr<ByteStream> stream, EventLoop& loop,
                                   ConnectionOwner& owner)
    : id_(id), stream_(std::move(stream)), owner_(owner) {
  is_over_ = !entry_.add(loop, stream_->fd(), EPOLLIN, *this);
}

const TcpState& StreamConnection::tcp(StreamTime now, StreamDuration age) {
  if (tcp_at_ == StreamTime{} || now - tcp_at_ >= age) {
    tcp_ = TcpState::of(stream_->fd());
    tcp_at_ = now;
    written_ = 0;
  }
  return tcp_;
}

size_t StreamConnection::room(StreamTime now, StreamDuration age) {
  const TcpState& state = tcp(now, age);
  size_t room = state.room;
  if (state.rtt < kNear) {
    const double moments = std::chrono::duration<double>(kMoment) /
                           std::max<std::chrono::duration<double>>(state.rtt, kMoment / 50.0);
    const auto ahead = static_cast<size_t>(static_cast<double>(state.window) * moments);
    room += std::min(kMostAhead, ahead) - std::min({kMostAhead, ahead, state.unsent});
  }
  return room - std::min(room, written_ + writer_.bytes());
}

void StreamConnection::flush() {
  if (is_over_) return;
  const size_t before = writer_.bytes();
  if (!stream_->flush() || !writer_.flush(*stream_)) is_over_ = true;
  written_ += before - writer_.bytes();
  // The kernel may have made the window smaller as it sent.
  if (tcp_.rtt >= kNear) tcp_at_ = {};
  const bool waits = !writer_.is_empty() || stream_->has_unsent();
  entry_.set(waits ? uint32_t{EPOLLIN | EPOLLOUT} : uint32_t{EPOLLIN});
}

int StreamConnection::count_silence(StreamTime now, StreamDuration limit) {
  const TcpState& state = tcp(now, limit / 2);
  const bool waits = state.in_flight > 0 || !writer_.is_empty();
  silences_ = waits && state.since_heard > limit ? silences_ + 1 : 0;
  return silences_;
}

bool StreamConnection::is_drained() {
  const TcpState state = TcpState::of(stream_->fd());
  return writer_.is_empty() && !stream_->has_unsent() && state.unsent == 0 && state.in_flight == 0;
}

void StreamConnection::on_ready(uint32_t events) {
  owner_.on_activity();
  if (is_over_) {
    entry_.set(0);
    return;
  }
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  try {
    was_heard_ = true;
    // The event loop does not tell again of what the stream itself holds.
    auto outcome = FrameReader::Outcome::kMore;
    do {
      outcome = reader_.read(*stream_, owner_, kReadAtOnce);
    } while (outcome == FrameReader::Outcome::kMore && stream_->has_unread());
    is_over_ = is_over_ || outcome == FrameReader::Outcome::kOver;
  } catch (const Error& error) {
    log(Level::kInfo, std::string("a stream connection is closed: ") + error.what());
    is_over_ = is_bad_ = true;
  }
  if (is_over_) entry_.set(0);
}

}  // namespace q7x2
