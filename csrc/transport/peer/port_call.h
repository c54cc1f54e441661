// PortCall: one call to a process's port for heartbeats, with a single message. If it fails, it is
// repeated for a while.
//
// A *break notice* says that this process has given up its connection to the other one. It is the
// only message with this meaning. A connection may break so that only one end notices: by a reset
// before the other end had accepted it, or by a firewall that forgets. The groups that used it fail
// at the end that notices, and nothing can be sent over the connection any more. So that end calls
// the port. So does a process to which shared memory brings no messages any more (QueueWatch). A
// port that refuses a break notice means that the process has ended, and that its connection broke
// because of that.
//
// A *request for admission* asks a process of another host to admit this one (Admission). A process
// admits the hosts of which it has a peer info. It gets the peer info of a joiner only when its own
// program takes the joiner in, which may be later.
//
//   caller --> hello, topic "admit" --> listener, which admits the caller's host
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
  /// How long the call is repeated.
  static constexpr std::chrono::seconds kPatience{2};

  /// `process`: this one. Events are registered in `epoll`, with a pointer to this object as their
  /// data.
  PortCall(uint64_t process, const HeartbeatTarget& target, int epoll, TimePoint now);
  PortCall(const PortCall&) = delete;
  PortCall& operator=(const PortCall&) = delete;

  std::optional<Finding> ready(TimePoint now) override;
  std::optional<Finding> tick(TimePoint now) override;
  TimePoint due() const override { return next_call_; }
  bool asks_for_admission() const { return target_.topic == HeartbeatHello::Topic::kAdmit; }
  /// Whether the message was delivered (and answered, if it needs an answer), or cannot be
  /// delivered.
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
