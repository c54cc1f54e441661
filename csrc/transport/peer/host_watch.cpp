#include "transport/peer/host_watch.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "transport/net/connection_attempt.h"

namespace q7x2 {

HostWatch::HostWatch(const IpEndpoint& endpoint, SilenceClock::Duration limit, TimePoint now,
                     int epoll, const void* who)
    : endpoint_(endpoint), limit_(limit), epoll_(epoll), who_(who), clock_(limit, now) {}

bool HostWatch::hear_knock(TimePoint now) {
  if (!knock_.is_valid()) return false;
  const Attempt attempt = outcome(knock_);
  if (attempt == Attempt::kPending) return false;
  knock_.close();
  if (attempt == Attempt::kFailed) return false;
  clock_.hear(now);
  return true;
}

bool HostWatch::is_silent(TimePoint now) {
  hear_knock(now);
  clock_.look(now);
  if (!clock_.is_doubtful(now)) {
    knock_.close();
  } else if (now >= next_knock_) {
    next_knock_ = now + SilenceClock::period(limit_);
    knock_ = epoll_ < 0 ? start_connecting(endpoint_)
                        : start_connecting(endpoint_, epoll_, EPOLLOUT, who_);
  }
  return clock_.is_silent(now);
}

std::string HostWatch::silence(TimePoint now) const {
  const auto silence = std::max(clock_.silence(now), limit_);
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(),
                ", or the link to it, has not answered for %.1f s (Q7X2_SILENCE)",
                std::chrono::duration<double>(silence).count());
  return text.data();
}

}  // namespace q7x2
