// BreakNotice: tells another process that this one has given up a connection to it. Nothing else
// does.
//
// A connection may break so that only one end can see it: a reset that came before the other end
// had accepted it, or a firewall that forgets. The groups that used it fail at the end that sees
// it, and no word of that can go over the connection. So that end calls the port for heartbeats. So
// does a process that receives nothing from its host any more (QueueWatch).
//
// A port that refuses the call means that the process has ended, and that its connection broke
// because of that. A call that fails otherwise is made again for a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_hello.h"
#include "transport/peer/liveness_watch.h"

namespace q7x2 {

class BreakNotice final : public LivenessWatch {
 public:
  static constexpr std::chrono::seconds kPatience{2};

  /// `process`: this one. Events are registered in `epoll`, with this object as their data.
  BreakNotice(uint64_t process, const HeartbeatTarget& target, int epoll, TimePoint now);
  BreakNotice(const BreakNotice&) = delete;
  BreakNotice& operator=(const BreakNotice&) = delete;

  std::optional<Finding> ready(TimePoint now) override;
  std::optional<Finding> tick(TimePoint now) override;
  TimePoint due() const override { return next_call_; }
  /// It has been said, or nobody can hear it.
  bool is_over() const { return !line_.is_valid() && next_call_ == TimePoint::max(); }

 private:
  void call(TimePoint now);
  void call_again(TimePoint now);

  const uint64_t process_;
  const HeartbeatTarget target_;
  const int epoll_;
  const TimePoint give_up_;
  PrivateSocket line_;
  TimePoint next_call_ = TimePoint::max();
};

}  // namespace q7x2
