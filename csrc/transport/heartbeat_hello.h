// HeartbeatHello: the first bytes on a heartbeat connection, in both directions.
//
//   caller --> hello: who calls whom --> listener
//   caller <-- hello: who answers whom <-- listener
//
// Anybody can connect to a port. Bytes that are no hello for this process end the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace q7x2 {

struct HeartbeatHello {
  uint64_t sender = 0;       ///< process
  uint64_t receiver = 0;     ///< process
  uint32_t incarnation = 0;  ///< of the connection between the two
  uint32_t path = 0;         ///< 0: the network that all hosts share; 1: a private link
  /// That the sender belongs to the job. Zeros: nothing is claimed.
  std::array<std::byte, 32> tag{};

  static constexpr size_t kBytes = 64;
  using Bytes = std::array<std::byte, kBytes>;

  Bytes encode() const;
  /// Nothing if the bytes are not a hello of this version.
  static std::optional<HeartbeatHello> decode(std::span<const std::byte, kBytes> bytes);
};

}  // namespace q7x2
