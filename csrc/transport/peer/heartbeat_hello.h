// HeartbeatHello: what is said on a heartbeat connection, in both directions.
//
//   caller --> hello: who calls whom, a number, a proof --> listener
//   caller <-- hello: who answers whom, the same number, a proof <-- listener
//   caller --> bytes that say nothing, for the kernel to acknowledge --> listener
//   caller <-- hello with the same number, which ends the connection <-- listener
//
// Heartbeats are about a process and its host. A call that gives up the connection to the listener
// (a break notice) has no answer, and one that asks to be let connect (PortCall) is closed
// when that is so.
//
// Anybody can connect to a port. Each side shows that it knows the listener's key
// (transport/trust/job_secret.h). The proof is checked before anything else of a hello is read. A
// caller uses each number once, and the numbers go up, so hellos that were recorded are worth
// nothing. Bytes that are no hello for this process end the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/ip_address.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

struct HeartbeatHello {
  enum class Turn {
    kCall,
    kAnswer,
    kLeft,  ///< of the listener, last of all: its process ends in good order
  };
  enum class Topic : uint32_t {
    kShared,       ///< heartbeats over the network that all hosts share
    kPrivate,      ///< heartbeats over a private link
    kBroken,       ///< a break notice: the connection broke
    kShmBlocked,   ///< a break notice: the sender receives nothing from its host any more
    kPathBlocked,  ///< a break notice: data does not get through to the receiver
    kAdmit,        ///< the sender asks to be let connect: see PortCall
  };

  uint64_t sender = 0;       ///< process
  uint64_t receiver = 0;     ///< process
  uint32_t incarnation = 0;  ///< of the connection between the two
  Topic topic = Topic::kShared;
  uint64_t number = 0;  ///< of the call: higher than those of all calls before it

  bool is_break_notice() const { return topic >= Topic::kBroken && topic <= Topic::kPathBlocked; }

  static constexpr size_t kBytes = 56;
  using Bytes = std::array<std::byte, kBytes>;

  /// For a call that begins now. The clock counts the calls of a process to another: it is at least
  /// a look later than at the call before.
  static uint64_t next_number();
  /// `key`: of messages to the listener.
  Bytes encode(Turn turn, const MessageKey& key) const;
  /// Nothing if the bytes are not such a hello of this version.
  static std::optional<HeartbeatHello> decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                              const MessageKey& key);
};

/// Where a process is called, and what for.
struct HeartbeatTarget {
  uint64_t process = 0;
  uint32_t incarnation = 0;  ///< of the connection to it
  IpEndpoint endpoint;       ///< port 0: it has none
  HeartbeatHello::Topic topic = HeartbeatHello::Topic::kShared;
  MessageKey key{};  ///< of messages to the process
};

/// Says the hello of a call by process `caller` on a connection that was just made. Nothing if it
/// cannot be sent.
std::optional<HeartbeatHello> say_call(int socket, uint64_t caller, const HeartbeatTarget& target);

}  // namespace q7x2
