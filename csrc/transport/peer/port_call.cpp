#include "transport/peer/port_call.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/net/connection_attempt.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kPause{20};

}  // namespace

PortCall::PortCall(uint64_t process, const HeartbeatTarget& target, int epoll, TimePoint now)
    : process_(process), target_(target), epoll_(epoll), give_up_(now + kPatience) {
  call(now);
}

void PortCall::call(TimePoint now) {
  next_call_ = TimePoint::max();
  was_said_ = false;
  line_ = start_connecting(target_.endpoint, epoll_, EPOLLOUT, this);
  if (!line_.is_valid()) call_again(now);
}

void PortCall::call_again(TimePoint now) {
  line_.close();
  if (now < give_up_) next_call_ = now + kPause;
}

void PortCall::say(TimePoint now) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;
  was_said_ = ::epoll_ctl(epoll_, EPOLL_CTL_MOD, line_, &event) == 0 &&
              say_call(line_, process_, target_).has_value();
  if (!was_said_) {
    call_again(now);
  } else if (!asks_for_admission()) {
    line_.close();
  }
}

void PortCall::await_end(TimePoint now) {
  char byte = 0;
  const ssize_t count = ::recv(line_, &byte, 1, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  line_.close();
  if (count != 0) call_again(now);
}

std::optional<Finding> PortCall::ready(TimePoint now) {
  if (!line_.is_valid()) return std::nullopt;
  if (was_said_) {
    await_end(now);
    return std::nullopt;
  }
  switch (outcome(line_)) {
    case Attempt::kPending:
      break;
    case Attempt::kMade:
      say(now);
      break;
    case Attempt::kRefused:
      // The process that is asked may open its port soon.
      if (asks_for_admission()) {
        call_again(now);
        break;
      }
      line_.close();
      return Finding{Evidence::kEndedElsewhere, "its process has ended"};
    case Attempt::kFailed:
      call_again(now);
      break;
  }
  return std::nullopt;
}

std::optional<Finding> PortCall::tick(TimePoint now) {
  if (now >= next_call_) call(now);
  return std::nullopt;
}

}  // namespace q7x2
