// HostWatch: whether a host answers, such as that of a peer or of the store.
//
// While nothing is heard from it for a quarter of the limit, HostWatch knocks: it begins a
// connection to the host's port, and closes it when the host's kernel has made it or refused it. A
// knock is a fresh packet every eighth of the limit. After a loss TCP sends again ever more rarely,
// so that a connection could sleep through the end of a short outage. A kernel that does not answer
// for the whole limit is silent (silence_clock.h).
#pragma once

#include <string>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"
#include "transport/peer/silence_clock.h"

namespace q7x2 {

class HostWatch {
 public:
  using TimePoint = SilenceClock::TimePoint;

  /// `epoll`: knocks are registered there, with `who` as their data; -1: nowhere.
  HostWatch(const IpEndpoint& endpoint, SilenceClock::Duration limit, TimePoint now, int epoll = -1,
            const void* who = nullptr);

  /// The host was heard at that time.
  void hear(TimePoint at) { clock_.hear(at); }
  /// Whether the host has answered a knock since the last call.
  bool hear_knock(TimePoint now);
  /// Knocks if it must. To be called several times in an eighth of the limit while the host is not
  /// heard.
  bool is_silent(TimePoint now);
  /// When it will be, if it is not heard until then.
  TimePoint silent_at() const { return clock_.silent_at(); }
  /// The host has answered lately.
  bool answers(TimePoint now) const {
    return clock_.was_heard() && clock_.silence(now) < limit_ / 2;
  }
  /// There is no doubt that it answers now.
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
