// A TCP connection in the making: what it has come to tells whether the other host lives. A kernel
// that refuses answers, too.
#pragma once

#include <cstdint>

#include "base/ip_address.h"
#include "transport/net/private_socket.h"

namespace q7x2 {

enum class Attempt { kPending, kMade, kRefused, kFailed };

/// What the attempt of `socket` has come to.
Attempt outcome(int socket);
/// Begins to connect. Invalid if that fails at once, as with "no route", which is no answer.
PrivateSocket start_connecting(const IpEndpoint& target);
/// The same, with `events` registered in `epoll` and `who` as their data. Invalid also if that
/// fails.
PrivateSocket start_connecting(const IpEndpoint& target, int epoll, uint32_t events,
                               const void* who);

}  // namespace q7x2
