// HostWatch: whether a host answers, for example the host of a peer or of the store.
//
// If nothing is heard from it for a quarter of the limit, HostWatch knocks: it begins a connection
// to the host's port, and closes it when the host's kernel has accepted or refused it. It sends a
// fresh packet every eighth of the limit. This is needed because TCP retransmits at growing
// intervals, so an existing connection could miss the end of a short outage. If the kernel does not
// answer for the whole limit, the host is silent (silence_clock.h).
#pragma once

#include <string>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"
#include "transport/peer/silence_clock.h"

namespace q7x2 {

class HostWatch {
 public:
  using TimePoint = SilenceClock::TimePoint;

  /// `epoll`: knocks are registered there, with `who` as their data; -1: not registered.
  HostWatch(const IpEndpoint& endpoint, SilenceClock::Duration limit, TimePoint now, int epoll = -1,
            const void* who = nullptr);

  /// The host answered at this time.
  void hear(TimePoint at) { clock_.hear(at); }
  /// Whether the host has answered a knock since the last call.
  bool hear_knock(TimePoint now);
  /// Knocks if necessary. Must be called several times in an eighth of the limit while the host is
  /// not heard.
  bool is_silent(TimePoint now);
  /// When the host becomes silent if it does not answer before.
  TimePoint silent_at() const { return clock_.silent_at(); }
  /// Whether the host has answered recently.
  bool answers(TimePoint now) const {
    return clock_.was_heard() && clock_.silence(now) < limit_ / 2;
  }
  /// Whether the host certainly answers now.
  bool answers_now(TimePoint now) const { return answers(now) && !clock_.is_doubtful(now); }
  /// ", or the link to it, has not answered for 2.0 s (Q7X2_SILENCE)".
  std::string silence(TimePoint now) const;
  void stop_knocking() { knock_.close(); }
  const IpEndpoint& endpoint() const { return endpoint_; }

 private:
  const IpEndpoint endpoint_;
  const SilenceClock::Duration limit_;
  const int epoll_;
  const void* const who_;
  SilenceClock clock_;
  PrivateSocket knock_;
  TimePoint next_knock_{};
};

}  // namespace q7x2
