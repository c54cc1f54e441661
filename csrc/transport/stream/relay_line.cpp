#include "transport/stream/relay_line.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/net/connection_attempt.h"
#include "transport/stream/byte_stream.h"

namespace q7x2 {
namespace {

constexpr std::chrono::seconds kPause{1};  // before a line that broke is made again
constexpr std::chrono::seconds kAnswerPatience{10};
constexpr size_t kMostAnswers = 128;  // at once
// NAT forgets a connection on which nothing passes. Seconds.
constexpr int kKeepAlive = 15;

void keep_alive(int socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAlive, sizeof(kKeepAlive));
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAlive, sizeof(kKeepAlive));
}

}  // namespace

RelayLine::RelayLine(EventLoop& loop, const IpEndpoint& relay, const RelayHello& hello,
                     const StreamOptions& options, Take take)
    : loop_(loop), relay_(relay), hello_(hello), options_(options), take_(std::move(take)) {
  connect(options_.now());
}

void RelayLine::connect(StreamTime now) {
  next_ = now + kPause;
  num_read_ = 0;
  socket_ = start_connecting(relay_);
  if (!socket_.is_valid()) return;
  keep_alive(socket_);
  if (!entry_.add(loop_, socket_, EPOLLOUT, *this)) socket_.close();
}

void RelayLine::hang_up() {
  entry_.remove();
  socket_.close();
  is_connected_ = is_registered_ = false;
}

void RelayLine::look(StreamTime now) {
  if (!socket_.is_valid() && now >= next_) connect(now);
  answers_.remove_if([&](const Answer& each) { return each.is_over || now >= each.until; });
}

StreamTime RelayLine::due() const {
  StreamTime at = socket_.is_valid() ? StreamTime::max() : next_;
  for (const Answer& each : answers_) at = each.is_over ? StreamTime{} : std::min(at, each.until);
  return at;
}

void RelayLine::on_ready(uint32_t) {
  if (is_connected_) {
    read();
    return;
  }
  switch (outcome(socket_)) {
    case Attempt::kPending:
      return;
    case Attempt::kMade:
      is_connected_ = say(socket_, RelayHello::Kind::kListen, hello_.name);
      break;
    case Attempt::kRefused:
    case Attempt::kFailed:
      break;
  }
  if (is_connected_) {
    entry_.set(EPOLLIN);
  } else {
    hang_up();
  }
}

void RelayLine::read() {
  while (socket_.is_valid()) {
    const ssize_t count =
        ::recv(socket_, record_.data() + num_read_, record_.size() - num_read_, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      hang_up();
      return;
    }
    num_read_ += static_cast<size_t>(count);
    if (num_read_ < record_.size()) continue;
    num_read_ = 0;
    if (record_ == RelayHello::Name{}) {
      is_registered_ = true;
    } else {
      begin_answer();
    }
  }
}

void RelayLine::begin_answer() {
  if (answers_.size() == kMostAnswers) return;
  PrivateSocket socket = start_connecting(relay_);
  if (!socket.is_valid()) return;
  Answer& call = answers_.emplace_back(*this);
  call.number = record_;
  call.until = options_.now() + kAnswerPatience;
  call.socket = std::move(socket);
  call.is_over = !call.entry.add(loop_, call.socket, EPOLLOUT, call);
}

void RelayLine::answer(Answer& call) {
  const Attempt end = outcome(call.socket);
  if (end == Attempt::kPending || call.is_over) return;
  call.is_over = true;  // the list is tidied up by `look`
  call.entry.remove();
  if (end == Attempt::kMade && say(call.socket, RelayHello::Kind::kAccept, call.number)) {
    take_(std::move(call.socket));
  } else {
    call.socket.close();
  }
}

/// The buffer of a new connection has room for it.
bool RelayLine::say(int socket, RelayHello::Kind kind, const RelayHello::Name& name) const {
  RelayHello hello = hello_;
  hello.kind = kind;
  hello.name = name;
  const RelayHello::Bytes bytes = hello.encode();
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace q7x2
