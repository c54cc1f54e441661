#include "transport/peer/host_watch.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "transport/net/connection_attempt.h"

namespace q7x2 {

HostWatch::HostWatch(const IpEndpoint& endpoint, SilenceClock::Duration limit, TimePoint now)
    : endpoint_(endpoint), limit_(limit), clock_(limit, now) {}

bool HostWatch::is_silent(TimePoint now) {
  clock_.look(now);
  if (clock_.is_doubtful(now)) {
    knock(now);
  }
  return clock_.is_silent(now);
}

void HostWatch::knock(TimePoint now) {
  if (knock_.is_valid()) {
    const Attempt attempt = outcome(knock_);
    if (attempt == Attempt::kMade || attempt == Attempt::kRefused) {
      clock_.hear(now);
    }
    if (attempt != Attempt::kPending) {
      knock_.close();
    }
  }
  if (clock_.is_doubtful(now) && now >= next_knock_) {
    next_knock_ = now + SilenceClock::period(limit_);
    knock_.close();
    knock_ = start_connecting(endpoint_);
  }
}

std::string HostWatch::reason(TimePoint now) const {
  const auto silence = std::max(clock_.silence(now), limit_);
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(),
                ", or the link to it, has not answered for %.1f s (Q7X2_SILENCE)",
                std::chrono::duration<double>(silence).count());
  return endpoint_.text() + text.data();
}

}  // namespace q7x2
