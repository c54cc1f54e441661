#include "transport/net/connection_attempt.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

namespace q7x2 {

Attempt outcome(int socket) {
  pollfd entry{socket, POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) {
    return Attempt::kPending;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? Attempt::kMade : error == ECONNREFUSED ? Attempt::kRefused : Attempt::kFailed;
}

PrivateSocket start_connecting(const IpEndpoint& target) {
  PrivateSocket socket = PrivateSocket::open(target.address.family());
  if (!socket.is_valid()) {
    return socket;
  }
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const SocketAddress to(target);
  if (::connect(socket, to.get(), to.size()) != 0 && errno != EINPROGRESS) {
    socket.close();
  }
  return socket;
}

PrivateSocket start_connecting(const IpEndpoint& target, int epoll, uint32_t events,
                               const void* who) {
  PrivateSocket socket = start_connecting(target);
  epoll_event event{};
  event.events = events;
  event.data.ptr = const_cast<void*>(who);
  if (socket.is_valid() && ::epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) != 0) {
    socket.close();
  }
  return socket;
}

}  // namespace q7x2
