// A TCP connection that is being made. Its outcome tells whether the other host is alive: a kernel
// that refuses the connection is alive too.
#pragma once

#include <cstdint>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"

namespace q7x2 {

enum class Attempt { kPending, kMade, kRefused, kFailed };

/// The current state of the attempt on `socket`.
Attempt outcome(int socket);
/// Begins to connect. Invalid if that fails at once, for example with "no route", which is no
/// answer.
PrivateSocket start_connecting(const IpEndpoint& target);
/// The same, with `events` registered in `epoll` and `who` as their data. Also invalid if the
/// registration fails.
PrivateSocket start_connecting(const IpEndpoint& target, int epoll, uint32_t events,
                               const void* who);

}  // namespace q7x2
