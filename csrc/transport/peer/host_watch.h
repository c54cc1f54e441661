// HostWatch: whether a host answers on which something else is waited for, such as the store's.
//
// While nothing is heard from it, it is knocked at: a connection to its port is begun, and closed
// when the host's kernel has made it or refused it. A kernel that does neither for the whole limit
// is silent (silence_clock.h).
#pragma once

#include <string>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"
#include "transport/peer/silence_clock.h"

namespace q7x2 {

class HostWatch {
 public:
  using TimePoint = SilenceClock::TimePoint;

  HostWatch(const IpEndpoint& endpoint, SilenceClock::Duration limit, TimePoint now);

  /// The host was heard at that time.
  void hear(TimePoint at) { clock_.hear(at); }
  /// To be called several times in an eighth of the limit while it is not heard.
  bool is_silent(TimePoint now);
  /// "10.0.0.1 port 29500, or the link to it, has not answered for 2.0 s (Q7X2_SILENCE)".
  std::string reason(TimePoint now) const;

 private:
  void knock(TimePoint now);

  const IpEndpoint endpoint_;
  const SilenceClock::Duration limit_;
  SilenceClock clock_;
  PrivateSocket knock_;
  TimePoint next_knock_{};
};

}  // namespace q7x2
