#include "transport/peer/heartbeat.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include "base/log.h"
#include "transport/net/connection_attempt.h"

namespace q7x2 {
namespace {

constexpr char kBeat = '.';
// So many attempts are more than the end of a process explains, which UCX notices meanwhile.
constexpr int kWarnAfter = 20;
// The first call after one that was lost is made at once, the second after this pause.
constexpr std::chrono::milliseconds kPause{5};
constexpr int kMostDoublings = 8;

}  // namespace

Heartbeat::Heartbeat(uint64_t process, const Target& target, SilenceClock::Duration limit,
                     int epoll, TimePoint now)
    : process_(process), target_(target), limit_(limit), epoll_(epoll), clock_(limit, now) {
  call(now);
}

Heartbeat::TimePoint Heartbeat::due() const {
  if (is_over_) {
    return TimePoint::max();
  }
  return state_ == Line::kDown ? std::min(next_call_, clock_.silent_at()) : clock_.silent_at();
}

std::optional<Heartbeat::Finding> Heartbeat::look(TimePoint now) {
  if (is_over_) {
    return std::nullopt;
  }
  clock_.look(now);
  if (state_ == Line::kDown && now >= next_call_) {
    if (auto finding = call(now)) {
      return finding;
    }
  } else if (state_ == Line::kGreeting || state_ == Line::kUp) {
    beat(now);
  }
  if (clock_.is_silent(now)) {
    return silence(now);
  }
  if (clock_.is_doubtful(now)) {
    knock(now);
  } else {
    knock_.close();
  }
  return std::nullopt;
}

Heartbeat::Finding Heartbeat::silence(TimePoint now) const {
  std::array<char, 96> text;
  std::snprintf(text.data(), text.size(),
                "its host, or the link to it, has not answered for %.1f s (Q7X2_SILENCE)",
                std::chrono::duration<double>(std::max(clock_.silence(now), limit_)).count());
  return {Evidence::kSilent, text.data()};
}

std::optional<Heartbeat::Finding> Heartbeat::ready(TimePoint now) {
  if (is_over_) {
    return std::nullopt;
  }
  if (knock_.is_valid()) {
    knocked(now);
  }
  if (state_ == Line::kCalling) {
    if (auto finding = called(now)) {
      return finding;
    }
  }
  return state_ == Line::kGreeting || state_ == Line::kUp ? read(now) : std::nullopt;
}

// ----------------------------------------------------------------------------------------- line

PrivateSocket Heartbeat::start_connection(uint32_t events) const {
  return start_connecting(target_.endpoint, epoll_, events, this);
}

std::optional<Heartbeat::Finding> Heartbeat::call(TimePoint now) {
  line_ = start_connection(EPOLLIN | EPOLLOUT);
  num_heard_ = 0;
  if (!line_.is_valid()) {
    hang_up(now);
    return std::nullopt;
  }
  state_ = Line::kCalling;
  return called(now);
}

std::optional<Heartbeat::Finding> Heartbeat::called(TimePoint now) {
  switch (outcome(line_)) {
    case Attempt::kPending:
      break;
    case Attempt::kMade:
      clock_.hear(now);
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

std::optional<Heartbeat::Finding> Heartbeat::refused(TimePoint now) {
  clock_.hear(now);
  if (has_answered_ || believes_refusals_) {
    hang_up(now);
    return Finding{Evidence::kEndedElsewhere, "its process has ended"};
  }
  turned_away(now);
  return std::nullopt;
}

void Heartbeat::greet(TimePoint now) {
  hello_ = {process_, target_.process, target_.incarnation, target_.topic,
            HeartbeatHello::next_number()};
  const auto hello = hello_.encode(HeartbeatHello::Turn::kCall, target_.key);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, line_, &event) != 0 ||
      ::send(line_, hello.data(), hello.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(hello.size())) {
    hang_up(now);
    return;
  }
  state_ = Line::kGreeting;
}

// It calls again: at once, and then ever more rarely, up to once in a period.
void Heartbeat::hang_up(TimePoint now) {
  line_.close();
  state_ = Line::kDown;
  const SilenceClock::Duration pause =
      num_hung_up_ == 0 ? SilenceClock::Duration::zero()
                        : kPause * (1 << std::min(num_hung_up_ - 1, kMostDoublings));
  next_call_ = now + std::min(pause, SilenceClock::period(limit_));
  ++num_hung_up_;
}

// The port refuses, or another process has it: nobody can say by this address whether the peer is
// silent.
void Heartbeat::turned_away(TimePoint now) {
  hang_up(now);
  if (++num_turned_away_ == kWarnAfter) {
    log(Level::kWarn, "no heartbeats from a rank on another host: " + target_.endpoint.text() +
                          " is not its process. If its host falls silent, that is noticed late");
  }
}

std::optional<Heartbeat::Finding> Heartbeat::read(TimePoint now) {
  while (state_ == Line::kGreeting || state_ == Line::kUp) {
    const std::span<std::byte> rest = std::span(heard_).subspan(num_heard_);
    const ssize_t count = ::recv(line_, rest.data(), rest.size(), 0);
    if (count <= 0) {
      lost(count, now);
      return std::nullopt;
    }
    num_heard_ += static_cast<size_t>(count);
    if (num_heard_ < heard_.size()) continue;
    num_heard_ = 0;
    if (state_ == Line::kUp) return check_end(now);
    check_answer(now);
  }
  return std::nullopt;
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

// What has no proof was not said by the process: the next call shows how it is.
std::optional<Heartbeat::Finding> Heartbeat::check_end(TimePoint now) {
  const auto says = [&](HeartbeatHello::Turn turn) {
    return is_answer(HeartbeatHello::decode(heard_, turn, target_.key));
  };
  hang_up(now);
  if (says(HeartbeatHello::Turn::kLeft)) {
    knock_.close();
    is_over_ = true;
  } else if (says(HeartbeatHello::Turn::kGivenUp)) {
    return Finding{Evidence::kConnectionBroke, "it has given up the connection to this process"};
  } else if (says(HeartbeatHello::Turn::kBlocked)) {
    return Finding{Evidence::kConnectionBroke, kPathFromIsBlocked};
  }
  return std::nullopt;
}

// The process has ended, or it has not taken the call, or somebody reset the connection, or TCP
// itself has given up. The next call shows which.
void Heartbeat::lost(ssize_t received, TimePoint now) {
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (received == 0 || errno == ECONNRESET || errno == EPIPE) {
    clock_.hear(now);
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
    clock_.hear(now - std::chrono::milliseconds(info.tcpi_last_ack_recv));
  }
  // One byte at a time: more would say nothing more.
  if (!is_known || info.tcpi_unacked == 0) {
    ::send(line_, &kBeat, 1, MSG_NOSIGNAL);
  }
}

void Heartbeat::knock(TimePoint now) {
  if (knock_.is_valid()) {
    knocked(now);
  }
  knock_.close();
  knock_ = start_connection(EPOLLOUT);
}

void Heartbeat::knocked(TimePoint now) {
  const Attempt attempt = outcome(knock_);
  if (attempt == Attempt::kPending) {
    return;
  }
  knock_.close();
  if (attempt != Attempt::kFailed) {
    clock_.hear(now);
    if (state_ == Line::kCalling) hang_up(now);  // its own attempts have become rare
  }
}

}  // namespace q7x2
