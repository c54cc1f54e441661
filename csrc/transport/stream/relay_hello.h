// RelayHello: what a process says first on each of its connections to a relay (q7x2 serve --relay).
//
// A relay joins two connections and passes on what comes. Two processes behind NAT, of which none
// can call the other, meet there:
//
//   b  --listen, b's token-->  relay              b waits for calls on this line
//   a  --call, b's token---->  relay --number-->  b
//                              relay <--accept, number--  b, on a new connection
//   a  <===== all further bytes, both ways =====> b
//
// What follows a call is the handshake of a connection of a path (StreamHello, TLS), so a relay can
// neither read nor change what it passes on, nor pretend to be a process of the job. Tokens come
// from the secret, so only members of the job can name its processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/trust/job_secret.h"

namespace q7x2 {

struct RelayHello {
  enum class Kind : uint8_t { kListen = 'L', kCall = 'C', kAccept = 'A' };
  static constexpr size_t kBytes = 48;
  using Bytes = std::array<std::byte, kBytes>;
  /// A token, or the number of a call. On a line, the number of zeros says that it is registered.
  using Name = std::array<std::byte, 16>;

  Kind kind = Kind::kListen;
  Name job{};   ///< the same for all processes with a secret: a relay has limits for each job
  Name name{};  ///< the token of a listening process, or the number of an accepted call

  static Name job_with(const JobSecret& secret);
  /// About `process` of the job with this secret.
  static RelayHello of(Kind kind, const JobSecret& secret, const Identity& process);
  Bytes encode() const;
};

}  // namespace q7x2
