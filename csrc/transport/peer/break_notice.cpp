#include "transport/peer/break_notice.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/net/connection_attempt.h"

namespace q7x2 {

BreakNotice::BreakNotice(uint64_t process, const Heartbeat::Target& target, int epoll)
    : process_(process),
      target_(target),
      line_(start_connecting(target.endpoint, epoll, EPOLLOUT, this)) {}

std::optional<Heartbeat::Finding> BreakNotice::ready() {
  const Attempt attempt = outcome(line_);
  if (attempt == Attempt::kPending) {
    return std::nullopt;
  }
  if (attempt == Attempt::kMade) {
    const HeartbeatHello hello{process_, target_.process, target_.incarnation, target_.topic,
                               HeartbeatHello::next_number()};
    const auto bytes = hello.encode(HeartbeatHello::Turn::kCall, target_.key);
    ::send(line_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  line_.close();
  if (attempt == Attempt::kRefused) {
    return Heartbeat::Finding{Evidence::kEndedElsewhere, "its process has ended"};
  }
  return std::nullopt;
}

}  // namespace q7x2
