// Heartbeat: watches one process on another host, by a TCP connection that carries nothing else.
//
// What counts is what the other host's *kernel* does, so a process that is stopped or slow is not
// taken for dead:
//
// - The kernel acknowledges a byte now and then: the host and the link to it are alive. TCP_INFO
//   says when the last acknowledgement came.
// - The kernel closes the connection: call again, at once. If the port refuses the call, the
//   process has ended. If it takes the call, only the connection broke.
// - Nothing comes for a quarter of the limit: knock. A knock is one more connection, closed when it
//   is made. After a loss TCP sends again ever more rarely, so that it could sleep through the end
//   of a short outage. A knock is a fresh packet every eighth of the limit. A kernel that refuses
//   it answers too.
// - Nothing comes for the whole limit: silent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat_hello.h"
#include "transport/peer/peer_life.h"
#include "transport/peer/silence_clock.h"

namespace q7x2 {

class Heartbeat {
 public:
  using TimePoint = SilenceClock::TimePoint;

  struct Target {
    uint64_t process = 0;
    uint32_t incarnation = 0;
    IpEndpoint endpoint;  ///< port 0: it has none
    HeartbeatHello::Topic topic = HeartbeatHello::Topic::kShared;
    MessageKey key{};  ///< of messages to the process
  };
  struct Finding {
    Evidence evidence;
    std::string reason;  ///< completes "rank 3 failed: ..."
  };

  /// `process`: this one. Events are registered in `epoll`, with this object as their data.
  Heartbeat(uint64_t process, const Target& target, SilenceClock::Duration limit, int epoll,
            TimePoint now);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// To be called about every `SilenceClock::period`: asks, and judges.
  std::optional<Finding> look(TimePoint now);
  /// From now on a port that refuses means that the process has ended, also if the process has
  /// never answered there: it was alive when it named the port, or others say that it has failed.
  void believe_refusals() { believes_refusals_ = true; }
  /// The port has taken a call.
  bool has_reached() const { return has_reached_; }
  /// A socket is ready.
  std::optional<Finding> ready(TimePoint now);
  /// When `look` must be called at the latest; max: it does not matter.
  TimePoint due() const;
  /// The host has answered lately.
  bool answers(TimePoint now) const {
    return !is_over_ && clock_.was_heard() && clock_.silence(now) < limit_ / 2;
  }
  /// There is no doubt that it answers now.
  bool answers_now(TimePoint now) const { return answers(now) && !clock_.is_doubtful(now); }
  /// The host has not answered lately, or not yet, although it should.
  bool is_out_of_reach(TimePoint now) const { return !is_over_ && !answers(now); }

 private:
  enum class Line { kDown, kCalling, kGreeting, kUp };

  std::optional<Finding> call(TimePoint now);
  std::optional<Finding> called(TimePoint now);
  std::optional<Finding> refused(TimePoint now);
  void greet(TimePoint now);
  bool is_answer(const std::optional<HeartbeatHello>& hello) const;
  void check_answer(TimePoint now);
  std::optional<Finding> check_end(TimePoint now);
  void hang_up(TimePoint now);
  void turned_away(TimePoint now);
  std::optional<Finding> read(TimePoint now);
  void lost(ssize_t received, TimePoint now);
  void beat(TimePoint now);
  void knock(TimePoint now);
  void knocked(TimePoint now);
  /// A connection in the making, or nothing.
  PrivateSocket start_connection(uint32_t events) const;
  Finding silence(TimePoint now) const;

  const uint64_t process_;
  const Target target_;
  const SilenceClock::Duration limit_;
  const int epoll_;

  SilenceClock clock_;
  PrivateSocket line_;
  Line state_ = Line::kDown;
  HeartbeatHello hello_;
  HeartbeatHello::Bytes heard_{};  // the answer, and then the end
  size_t num_heard_ = 0;
  int num_turned_away_ = 0;
  int num_hung_up_ = 0;  // since it answered last
  TimePoint next_call_{};
  bool believes_refusals_ = false;
  bool has_reached_ = false;
  bool has_answered_ = false;
  PrivateSocket knock_;
  bool is_over_ = false;  // the process has left; nothing is watched
};

}  // namespace q7x2
