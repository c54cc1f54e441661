// PortCall: one call to a process's port for heartbeats, which says one thing. It is made again for
// a while if it fails.
//
// A *break notice* says that this process has given up its connection to that one. Nothing else
// does. A connection may break so that only one end can see it: a reset that came before the other
// end had accepted it, or a firewall that forgets. The groups that used it fail at the end that
// sees it, and no word of that can go over the connection. So that end calls the port. So does a
// process that receives nothing from its host any more (QueueWatch). A port that refuses a break
// notice means that the process has ended, and that its connection broke because of that.
//
// A *request for admission* asks a process of another host to let this one connect (Admission). A
// process lets the hosts connect whose peer infos it has. It has the peer info of a joiner only
// when its own program takes the joiner in, which may be later.
//
//   caller --> hello, topic "admit" --> listener, which lets the caller's host connect
//   caller <-- end of the connection <-- listener
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_hello.h"
#include "transport/peer/liveness_watch.h"

namespace q7x2 {

class PortCall final : public LivenessWatch {
 public:
  /// How long it is made again.
  static constexpr std::chrono::seconds kPatience{2};

  /// `process`: this one. Events are registered in `epoll`, with this object as their data.
  PortCall(uint64_t process, const HeartbeatTarget& target, int epoll, TimePoint now);
  PortCall(const PortCall&) = delete;
  PortCall& operator=(const PortCall&) = delete;

  std::optional<Finding> ready(TimePoint now) override;
  std::optional<Finding> tick(TimePoint now) override;
  TimePoint due() const override { return next_call_; }
  bool asks_for_admission() const { return target_.topic == HeartbeatHello::Topic::kAdmit; }
  /// It was said, and answered if it asks, or nobody can hear it.
  bool is_over() const { return !line_.is_valid() && next_call_ == TimePoint::max(); }

 private:
  void call(TimePoint now);
  void call_again(TimePoint now);
  void say(TimePoint now);
  void await_end(TimePoint now);

  const uint64_t process_;
  const HeartbeatTarget target_;
  const int epoll_;
  const TimePoint give_up_;
  PrivateSocket line_;
  bool was_said_ = false;
  TimePoint next_call_ = TimePoint::max();
};

}  // namespace q7x2
