// AdmissionRequest: asks processes of other hosts to let this one connect.
//
// A process lets the hosts connect whose peer infos it has. It has the peer info of a joiner only
// when its own program takes the joiner in, which may be later. So the joiner calls the process's
// port for heartbeats first, and proves that it belongs to the job
// (transport/peer/heartbeat_hello.h):
//
//   caller --> hello, topic "admit" --> listener, which lets the caller's host connect
//   caller <-- end of the connection <-- listener
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_hello.h"

namespace q7x2 {

class AdmissionRequests {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// How long a process is asked again that refuses the call: it may open its port soon.
  static constexpr std::chrono::seconds kPatience{2};

  /// `process`: this one. `targets`: whom it asks.
  AdmissionRequests(uint64_t process, const std::vector<HeartbeatTarget>& targets, TimePoint now);

  /// True: all were asked, or did not answer in time. Does not wait.
  bool poll(TimePoint now);

 private:
  struct Request {
    HeartbeatTarget target;
    PrivateSocket line;
    bool was_sent = false;
    bool is_over = false;
    TimePoint next_call{};
  };

  void advance(Request& request, TimePoint now) const;

  const uint64_t process_;
  const TimePoint give_up_;
  std::vector<Request> requests_;
};

}  // namespace q7x2
