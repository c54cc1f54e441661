// HeartbeatHello: the message on a heartbeat connection, in both directions.
//
//   caller --> hello: number of the caller, of the listener and of the call, a proof --> listener
//   caller <-- hello: the same with the roles exchanged, a proof <-- listener
//   caller --> bytes without a meaning, for the kernel to acknowledge --> listener
//   caller <-- hello with the same number, which ends the connection <-- listener
//
// Heartbeats concern a process and its host. Two kinds of calls differ: a call that gives up the
// connection to the listener (a break notice) gets no answer, and a call that asks for admission
// (PortCall) is closed when the caller is admitted.
//
// Anybody can connect to a port. So each side proves that it knows the listener's key
// (transport/trust/job_secret.h). The proof is checked before anything else in a hello is read. A
// caller uses each number once, in increasing order, so a recorded hello is useless. Bytes that are
// no hello for this process end the connection.
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
    kLeft,  ///< from the listener, as its last message: its process ends in good order
  };
  enum class Topic : uint32_t {
    kShared,       ///< heartbeats over the network that all hosts share
    kPrivate,      ///< heartbeats over a private link
    kBroken,       ///< a break notice: the connection broke
    kShmBlocked,   ///< a break notice: shared memory brings no messages to the sender any more
    kPathBlocked,  ///< a break notice: data does not get through to the receiver
    kAdmit,        ///< the sender asks for admission: see PortCall
  };

  uint64_t sender = 0;       ///< process number
  uint64_t receiver = 0;     ///< process number
  uint32_t incarnation = 0;  ///< belongs to the connection between the two
  Topic topic = Topic::kShared;
  uint64_t number = 0;  ///< higher for each call than for all earlier ones

  bool is_break_notice() const { return topic >= Topic::kBroken && topic <= Topic::kPathBlocked; }

  static constexpr size_t kBytes = 56;
  using Bytes = std::array<std::byte, kBytes>;

  /// The number of a call that begins now. It is read from a clock, so it increases from call to
  /// call.
  static uint64_t next_number();
  /// `key`: of messages to the listener.
  Bytes encode(Turn turn, const MessageKey& key) const;
  /// Returns nothing if the bytes are not a valid hello of this version with this `turn`.
  static std::optional<HeartbeatHello> decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                              const MessageKey& key);
};

/// The port of a process, and the purpose of the call.
struct HeartbeatTarget {
  uint64_t process = 0;
  uint32_t incarnation = 0;  ///< belongs to the connection to the process
  IpEndpoint endpoint;       ///< port 0: the process has no port
  HeartbeatHello::Topic topic = HeartbeatHello::Topic::kShared;
  MessageKey key{};  ///< authenticates messages to the process
};

/// Sends the hello of a call by process `caller` on a new connection. Returns nothing if it cannot
/// be sent.
std::optional<HeartbeatHello> say_call(int socket, uint64_t caller, const HeartbeatTarget& target);

}  // namespace q7x2
