#include "transport/peer/heartbeat.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "transport/net/connection_attempt.h"

namespace q7x2 {
namespace {

constexpr char kBeat = '.';
// The end of a process explains fewer attempts than this, because UCX notices the end meanwhile.
constexpr int kWarnAfter = 20;
// After a lost call, the first new call is made at once, the second after this pause.
constexpr std::chrono::milliseconds kPause{5};
constexpr int kMostDoublings = 8;

}  // namespace

Heartbeat::Heartbeat(uint64_t process, const HeartbeatTarget& target, SilenceClock::Duration limit,
                     int epoll, TimePoint now)
    : process_(process),
      target_(target),
      limit_(limit),
      epoll_(epoll),
      host_(target.endpoint, limit, now, epoll, this) {
  call(now);
}

LivenessWatch::TimePoint Heartbeat::due() const {
  if (is_over_) {
    return TimePoint::max();
  }
  return state_ == Line::kDown ? std::min(next_call_, host_.silent_at()) : host_.silent_at();
}

Finding Heartbeat::found(Evidence evidence, std::string reason) const {
  return {evidence, std::move(reason), has_reached_};
}

std::optional<Finding> Heartbeat::tick(TimePoint now) {
  if (is_over_) {
    return std::nullopt;
  }
  hear_knock(now);
  if (state_ == Line::kDown && now >= next_call_) {
    if (auto finding = call(now)) {
      return finding;
    }
  } else if (state_ == Line::kGreeting || state_ == Line::kUp) {
    beat(now);
  }
  if (host_.is_silent(now)) {
    return found(Evidence::kSilent, "its host" + host_.silence(now));
  }
  return std::nullopt;
}

std::optional<Finding> Heartbeat::ready(TimePoint now) {
  if (is_over_) {
    return std::nullopt;
  }
  hear_knock(now);
  if (state_ == Line::kCalling) {
    if (auto finding = called(now)) {
      return finding;
    }
  }
  read(now);
  return std::nullopt;
}

// If a knock was needed, the call's own attempts have become rare.
void Heartbeat::hear_knock(TimePoint now) {
  if (host_.hear_knock(now) && state_ == Line::kCalling) hang_up(now);
}

// ----------------------------------------------------------------------------------------- line

std::optional<Finding> Heartbeat::call(TimePoint now) {
  line_ = start_connecting(target_.endpoint, epoll_, EPOLLIN | EPOLLOUT, this);
  num_heard_ = 0;
  if (!line_.is_valid()) {
    hang_up(now);
    return std::nullopt;
  }
  state_ = Line::kCalling;
  return called(now);
}

std::optional<Finding> Heartbeat::called(TimePoint now) {
  switch (outcome(line_)) {
    case Attempt::kPending:
      break;
    case Attempt::kMade:
      host_.hear(now);
      has_reached_ = true;
      greet(now);
      break;
    case Attempt::kRefused:
      return refused(now);
    case Attempt::kFailed:
      hang_up(now);
      break;
  }
  return std::nullopt;
}

std::optional<Finding> Heartbeat::refused(TimePoint now) {
  host_.hear(now);
  if (has_answered_ || believes_refusals_) {
    hang_up(now);
    return found(Evidence::kEndedElsewhere, "its process has ended");
  }
  turned_away(now);
  return std::nullopt;
}

void Heartbeat::greet(TimePoint now) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  const bool is_watched = ::epoll_ctl(epoll_, EPOLL_CTL_MOD, line_, &event) == 0;
  const auto hello = is_watched ? say_call(line_, process_, target_) : std::nullopt;
  if (!hello) {
    hang_up(now);
    return;
  }
  hello_ = *hello;
  state_ = Line::kGreeting;
}

// Calls again: at once, and then at growing intervals, at most one period apart.
void Heartbeat::hang_up(TimePoint now) {
  line_.close();
  state_ = Line::kDown;
  const SilenceClock::Duration pause =
      num_hung_up_ == 0 ? SilenceClock::Duration::zero()
                        : kPause * (1 << std::min(num_hung_up_ - 1, kMostDoublings));
  next_call_ = now + std::min(pause, SilenceClock::period(limit_));
  ++num_hung_up_;
}

// The port refuses the call, or belongs to another process: this address cannot show whether the
// peer is silent.
void Heartbeat::turned_away(TimePoint now) {
  hang_up(now);
  if (++num_turned_away_ == kWarnAfter) {
    log(Level::kWarn,
        "no heartbeats from a rank on another host: " + target_.endpoint.text() +
            " is not its process. If its host falls silent, this rank notices it late");
  }
}

void Heartbeat::read(TimePoint now) {
  while (state_ == Line::kGreeting || state_ == Line::kUp) {
    const std::span<std::byte> rest = std::span(heard_).subspan(num_heard_);
    const ssize_t count = ::recv(line_, rest.data(), rest.size(), 0);
    if (count <= 0) {
      lost(count, now);
      return;
    }
    num_heard_ += static_cast<size_t>(count);
    if (num_heard_ < heard_.size()) continue;
    num_heard_ = 0;
    if (state_ == Line::kUp) {
      check_end(now);
      return;
    }
    check_answer(now);
  }
}

bool Heartbeat::is_answer(const std::optional<HeartbeatHello>& hello) const {
  return hello && hello->sender == target_.process && hello->receiver == process_ &&
         hello->incarnation == target_.incarnation && hello->topic == target_.topic &&
         hello->number == hello_.number;
}

void Heartbeat::check_answer(TimePoint now) {
  if (!is_answer(HeartbeatHello::decode(heard_, HeartbeatHello::Turn::kAnswer, target_.key))) {
    turned_away(now);
    return;
  }
  state_ = Line::kUp;
  has_answered_ = true;
  num_hung_up_ = 0;
}

// Bytes without a proof did not come from the process: the next call shows its state.
void Heartbeat::check_end(TimePoint now) {
  hang_up(now);
  if (is_answer(HeartbeatHello::decode(heard_, HeartbeatHello::Turn::kLeft, target_.key))) {
    host_.stop_knocking();
    is_over_ = true;
  }
}

// The process has ended, or has not accepted the call, or the connection was reset, or TCP itself
// has given up. The next call shows which.
void Heartbeat::lost(ssize_t received, TimePoint now) {
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (received == 0 || errno == ECONNRESET || errno == EPIPE) {
    host_.hear(now);
  }
  hang_up(now);
}

// ---------------------------------------------------------------------------------------- asking

void Heartbeat::beat(TimePoint now) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  const bool is_known = ::getsockopt(line_, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
                        length >= offsetof(tcp_info, tcpi_last_ack_recv) + sizeof(uint32_t);
  if (is_known) {
    host_.hear(now - std::chrono::milliseconds(info.tcpi_last_ack_recv));
  }
  // One unacknowledged byte at a time is enough.
  if (!is_known || info.tcpi_unacked == 0) {
    ::send(line_, &kBeat, 1, MSG_NOSIGNAL);
  }
}

}  // namespace q7x2
