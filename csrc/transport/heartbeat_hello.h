// HeartbeatHello: the first bytes on a heartbeat connection.
//
//   caller <-- 16 random bytes: the challenge <-- listener
//   caller --> hello: who calls whom, another challenge, a proof --> listener
//   caller <-- hello: who answers whom, a proof <-- listener
//
// Anybody can connect to a port. Each side shows that it knows the listener's key
// (transport/job_secret.h). Its proof covers the other side's challenge, so hellos that were
// recorded are worth nothing. The proof is checked before anything else of a hello is read. Bytes
// that are no hello for this process end the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/job_secret.h"

namespace q7x2 {

/// A heartbeat. A caller may send some before its hello too, while the listener's process is
/// stopped and does not send the challenge.
inline constexpr std::byte kHeartbeat{'.'};

struct HeartbeatHello {
  using Challenge = std::array<std::byte, 16>;
  enum class Turn { kCall, kAnswer };

  uint64_t sender = 0;       ///< process
  uint64_t receiver = 0;     ///< process
  uint32_t incarnation = 0;  ///< of the connection between the two
  uint32_t path = 0;         ///< 0: the network that all hosts share; 1: a private link
  Challenge challenge{};     ///< for the answer; zeros in an answer

  static constexpr size_t kBytes = 64;
  using Bytes = std::array<std::byte, kBytes>;

  /// `key`: of messages to the listener. `challenged`: what the other side has sent.
  Bytes encode(Turn turn, const MessageKey& key, const Challenge& challenged) const;
  /// Nothing if the bytes are not such a hello of this version.
  static std::optional<HeartbeatHello> decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                              const MessageKey& key, const Challenge& challenged);
};

}  // namespace q7x2
