#include "transport/stream/stream_call.h"

#include <sys/socket.h>

#include <array>
#include <utility>

#include "transport/net/connection_attempt.h"
#include "transport/stream/tls_stream.h"

namespace q7x2 {

StreamCall::StreamCall(EventLoop& loop, const StreamAddress& target, const StreamHello& hello,
                       const MessageKey& key, const StreamOptions& options,
                       std::function<void()> on_change)
    : target_(target),
      hello_(hello),
      key_(key),
      options_(options),
      on_change_(std::move(on_change)),
      socket_(start_connecting(target.endpoint)),
      sent_(hello.encode(StreamHello::Turn::kCall, key)) {
  if (socket_.is_valid()) prepare_tcp(socket_, options.congestion);
  if (!socket_.is_valid() || !entry_.add(loop, socket_, EPOLLOUT, *this)) state_ = State::kFailed;
}

std::unique_ptr<ByteStream> StreamCall::take_stream() {
  entry_.remove();
  return std::move(stream_);
}

bool StreamCall::is_heard() const {
  const bool has_spoken = num_sent_ == sent_.size() || (stream_ && stream_->is_shaking_hands());
  if (state_ != State::kGreeting || !has_spoken) return false;
  const TcpState tcp = TcpState::of(stream_->fd());
  return tcp.in_flight == 0 && tcp.unsent == 0;
}

void StreamCall::on_ready(uint32_t) {
  const State before = state_;
  if (state_ == State::kConnecting) {
    switch (outcome(socket_)) {
      case Attempt::kPending:
        return;
      case Attempt::kRefused:
        state_ = State::kRefused;
        break;
      case Attempt::kFailed:
        state_ = State::kFailed;
        break;
      case Attempt::kMade:
        if (!introduce()) {
          state_ = State::kFailed;
          break;
        }
        stream_ = make_stream(std::move(socket_), options_, StreamEnd::kCaller, key_);
        state_ = State::kGreeting;
        break;
    }
  }
  if (state_ == State::kGreeting) greet();
  if (state_ >= State::kMade) entry_.remove();
  if (state_ != before) on_change_();
}

/// To a relay, if it is one. The buffer of a new connection has room for that.
bool StreamCall::introduce() {
  if (!target_.relay) return true;
  const RelayHello::Bytes bytes = target_.relay->encode();
  return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void StreamCall::greet() {
  const auto moved = [this](const auto& count, size_t& total) {
    if (!count) state_ = State::kFailed;
    total += count.value_or(0);
  };
  if (num_sent_ < sent_.size()) {
    const std::array<iovec, 1> rest{iovec{sent_.data() + num_sent_, sent_.size() - num_sent_}};
    moved(stream_->write(rest), num_sent_);
    const bool has_sent = num_sent_ == sent_.size();
    entry_.set(has_sent || stream_->is_shaking_hands() ? EPOLLIN : EPOLLOUT);
    if (!has_sent) return;
  }
  // Not more than the answer: frames may follow it.
  const std::array<iovec, 1> rest{iovec{read_.data() + num_read_, read_.size() - num_read_}};
  moved(stream_->read(rest), num_read_);
  if (num_read_ < read_.size() || state_ == State::kFailed) return;
  state_ = hears(StreamHello::Turn::kAnswer)        ? State::kMade
           : hears(StreamHello::Turn::kBreakNotice) ? State::kGivenUp
                                                    : State::kFailed;
}

/// Whether what was read answers this call in that way.
bool StreamCall::hears(StreamHello::Turn turn) {
  const auto answer = StreamHello::decode(read_, turn, key_);
  if (!answer || answer->sender != hello_.receiver || answer->receiver != hello_.sender ||
      answer->epoch != hello_.epoch || answer->number != hello_.number ||
      answer->nonce != hello_.nonce) {
    return false;
  }
  answer_ = *answer;
  return true;
}

}  // namespace q7x2
