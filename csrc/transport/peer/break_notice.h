// BreakNotice: one call that tells another process that this one has given up a connection to it.
//
// A connection may break so that only one end can see it: a reset that came before the other end
// had accepted it, or a firewall that forgets. The groups that used it fail at the end that sees
// it, and no word of that can go over the connection. So that end calls the port for heartbeats. So
// does a process that receives nothing from its host any more (QueueWatch).
//
// A port that refuses the call means that the process has ended, and that its connection broke
// because of that.
#pragma once

#include <cstdint>
#include <optional>

#include "transport/net/private_socket.h"
#include "transport/peer/heartbeat.h"

namespace q7x2 {

class BreakNotice {
 public:
  /// `process`: this one. Events are registered in `epoll`, with this object as their data.
  BreakNotice(uint64_t process, const Heartbeat::Target& target, int epoll);
  BreakNotice(const BreakNotice&) = delete;
  BreakNotice& operator=(const BreakNotice&) = delete;

  /// The socket is ready.
  std::optional<Heartbeat::Finding> ready();
  /// It has been said, or nobody can hear it.
  bool is_over() const { return !line_.is_valid(); }

 private:
  const uint64_t process_;
  const Heartbeat::Target target_;
  PrivateSocket line_;
};

}  // namespace q7x2
