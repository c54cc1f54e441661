// A TCP connection in the making: what it has come to tells whether the other host lives. A kernel
// that refuses answers, too.
#pragma once

#include <cstdint>

#include "transport/private_socket.h"

namespace q7x2 {

enum class Attempt { kPending, kMade, kRefused, kFailed };

/// What the attempt of `socket` has come to.
Attempt outcome(int socket);
/// Begins to connect. `address`: IPv4, in host byte order. Invalid if that fails at once, as with
/// "no route", which is no answer.
PrivateSocket start_connecting(uint32_t address, uint16_t port);
/// The same, with `events` registered in `epoll` and `who` as their data. Invalid also if that
/// fails.
PrivateSocket start_connecting(uint32_t address, uint16_t port, int epoll, uint32_t events,
                               const void* who);

}  // namespace q7x2
