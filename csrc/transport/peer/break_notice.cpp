#include "transport/peer/break_notice.h"

#include <sys/epoll.h>

#include "transport/net/connection_attempt.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kPause{20};

}  // namespace

BreakNotice::BreakNotice(uint64_t process, const HeartbeatTarget& target, int epoll, TimePoint now)
    : process_(process), target_(target), epoll_(epoll), give_up_(now + kPatience) {
  call(now);
}

void BreakNotice::call(TimePoint now) {
  next_call_ = TimePoint::max();
  line_ = start_connecting(target_.endpoint, epoll_, EPOLLOUT, this);
  if (!line_.is_valid()) call_again(now);
}

void BreakNotice::call_again(TimePoint now) {
  line_.close();
  if (now < give_up_) next_call_ = now + kPause;
}

std::optional<Finding> BreakNotice::ready(TimePoint now) {
  switch (line_.is_valid() ? outcome(line_) : Attempt::kPending) {
    case Attempt::kPending:
      break;
    case Attempt::kMade:
      if (say_call(line_, process_, target_)) {
        line_.close();
      } else {
        call_again(now);
      }
      break;
    case Attempt::kRefused:
      line_.close();
      return Finding{Evidence::kEndedElsewhere, "its process has ended"};
    case Attempt::kFailed:
      call_again(now);
      break;
  }
  return std::nullopt;
}

std::optional<Finding> BreakNotice::tick(TimePoint now) {
  if (now >= next_call_) call(now);
  return std::nullopt;
}

}  // namespace q7x2
