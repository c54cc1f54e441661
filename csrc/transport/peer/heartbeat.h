// Heartbeat: watches one process on another host, by a TCP connection that carries nothing else.
//
// Only answers of the other host's *kernel* count, so a process that is stopped or slow is not
// taken for dead:
//
// - The kernel acknowledges a byte now and then: the host and the link to it are alive. TCP_INFO
//   says when the last acknowledgement came.
// - The kernel closes the connection: call again, at once. If the port refuses the call, the
//   process has ended. If it accepts the call, only the connection broke.
// - No answer for a quarter of the limit: knock. No answer for the whole limit: silent. See
//   HostWatch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_hello.h"
#include "transport/peer/host_watch.h"
#include "transport/peer/liveness_watch.h"
#include "transport/peer/silence_clock.h"

namespace q7x2 {

class Heartbeat final : public LivenessWatch {
 public:
  /// `process`: this one. Events are registered in `epoll`, with a pointer to this object as their
  /// data.
  Heartbeat(uint64_t process, const HeartbeatTarget& target, SilenceClock::Duration limit,
            int epoll, TimePoint now);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// From now on a port that refuses means that the process has ended, even if the process has
  /// never answered there: it was alive when it named the port, or others say that it has failed.
  void believe_refusals() { believes_refusals_ = true; }

  std::optional<Finding> ready(TimePoint now) override;
  /// Sends a byte or a call if one is due, and returns what follows from the answers.
  std::optional<Finding> tick(TimePoint now) override;
  TimePoint due() const override;

  /// Whether the host has answered recently.
  bool answers(TimePoint now) const { return !is_over_ && host_.answers(now); }
  /// Whether the host certainly answers now.
  bool answers_now(TimePoint now) const { return !is_over_ && host_.answers_now(now); }
  /// Whether the host should have answered recently, but has not, or has never.
  bool is_out_of_reach(TimePoint now) const { return !is_over_ && !answers(now); }

 private:
  enum class Line { kDown, kCalling, kGreeting, kUp };

  std::optional<Finding> call(TimePoint now);
  std::optional<Finding> called(TimePoint now);
  std::optional<Finding> refused(TimePoint now);
  void greet(TimePoint now);
  bool is_answer(const std::optional<HeartbeatHello>& hello) const;
  void check_answer(TimePoint now);
  void check_end(TimePoint now);
  void hang_up(TimePoint now);
  void turned_away(TimePoint now);
  void read(TimePoint now);
  void lost(ssize_t received, TimePoint now);
  void beat(TimePoint now);
  void hear_knock(TimePoint now);
  Finding found(Evidence evidence, std::string reason) const;

  const uint64_t process_;
  const HeartbeatTarget target_;
  const SilenceClock::Duration limit_;
  const int epoll_;

  HostWatch host_;
  PrivateSocket line_;
  Line state_ = Line::kDown;
  HeartbeatHello hello_;
  HeartbeatHello::Bytes heard_{};  // first the answer, later the end
  size_t num_heard_ = 0;
  int num_turned_away_ = 0;
  int num_hung_up_ = 0;  // since its last answer
  TimePoint next_call_{};
  bool believes_refusals_ = false;
  bool has_reached_ = false;
  bool has_answered_ = false;
  bool is_over_ = false;  // the process has left; it is not watched any more
};

}  // namespace q7x2
