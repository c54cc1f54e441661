// StreamHello: the first words on a connection of a path.
//
//   caller --> hello: who calls whom, which path and connection, a nonce, a proof --> listener
//   caller <-- the same fields, and how much the listener's bounce memory holds; a proof
//      or  <-- a break notice: the listener has given the path up
//
// Both proofs need the listener's key (transport/trust/job_secret.h). The nonce is random, so an
// answer that was recorded proves nothing; a connection's number is used once per path, so neither
// does a hello. The proof is checked before anything else is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/trust/job_secret.h"

namespace q7x2 {

struct StreamHello {
  enum class Turn { kCall, kAnswer, kBreakNotice };

  uint64_t sender = 0;    ///< process
  uint64_t receiver = 0;  ///< process
  uint64_t epoch = 0;     ///< epoch of the path between the two
  uint64_t number = 0;    ///< the connection; the caller counts from 1
  uint64_t nonce = 0;     ///< the caller's; the answer repeats it
  uint64_t bounce = 0;    ///< bytes that may be sent to the sender of the hello unasked

  static constexpr size_t kBytes = 72;
  using Bytes = std::array<std::byte, kBytes>;

  /// `key`: of messages to the listener.
  Bytes encode(Turn turn, const MessageKey& key) const;
  /// Nothing if the bytes are not such a hello of this version.
  static std::optional<StreamHello> decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                           const MessageKey& key);

  bool operator==(const StreamHello&) const = default;
};

}  // namespace q7x2
