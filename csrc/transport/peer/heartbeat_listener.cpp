#include "transport/peer/heartbeat_listener.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transport/net/port_range.h"

namespace q7x2 {
namespace {

constexpr size_t kMostPorts = 32;

void reuse_address(const PrivateSocket& socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

/// Reads and drops what has arrived. Returns false if the connection has ended.
bool drain(const PrivateSocket& socket) {
  std::array<char, 256> bytes;
  for (;;) {
    const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (count <= 0) {
      return count < 0 && (errno == EAGAIN || errno == EINTR);
    }
  }
}

}  // namespace

HeartbeatListener::HeartbeatListener(uint64_t process, const MessageKey& key,
                                     const std::vector<IpAddress>& addresses)
    : process_(process), key_(key), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_create1: ") + std::strerror(errno));
  }
  const std::optional<PortRange> range = PortRange::of_environment();
  // Ranks of a host start at different ports, so that they try few ports in vain.
  const size_t first = range ? static_cast<size_t>(process) % range->size() : 0;
  const size_t most = range ? range->size() : kMostPorts;
  std::optional<PortTurn> turn;
  if (range) turn.emplace();
  // Another process may use the same port number at one of the addresses.
  for (size_t i = 0; i < most; ++i) {
    port_ = range ? range->at(first + i) : uint16_t{0};
    if (bind(addresses) || errno != EADDRINUSE) break;
  }
  if (port_ == 0 && range && errno == EADDRINUSE) {
    throw Error(ErrorCode::kTransport, used_up(*range, "heartbeats"));
  }
  if (port_ == 0 && range && errno == EACCES) {
    throw Error(ErrorCode::kTransport, "Q7X2_PORT_RANGE=" + range->text() +
                                           ": this process may not listen at these ports");
  }
  if (port_ == 0) {
    log(Level::kWarn, "no port for heartbeats (" + std::string(std::strerror(errno)) +
                          "): other hosts notice late if this one falls silent");
    return;
  }
  watch(sockets_.front(), true);
}

/// Binds to the port `port_`, or, if it is 0, to one that the kernel chooses. The socket of the
/// loopback then listens. Returns false if there is no port; errno says why.
bool HeartbeatListener::bind(const std::vector<IpAddress>& addresses) {
  std::vector<IpAddress> all{kLoopback};
  std::ranges::remove_copy(addresses, std::back_inserter(all), kLoopback);
  std::vector<Socket> sockets;
  uint16_t port = std::exchange(port_, uint16_t{0});
  const bool is_given = port != 0;
  for (const IpAddress& each : all) {
    Socket one{PrivateSocket::open(each.family())};
    const SocketAddress wanted({each, port});
    if (!one.socket.is_valid()) return false;
    // Connections of an earlier process occupy a port of the range for a minute. If two processes
    // bind the same port, they find out when they listen at the loopback.
    if (is_given) reuse_address(one.socket);
    if (::bind(one.socket, wanted.get(), wanted.size()) != 0) {
      if (errno == EADDRNOTAVAIL && !sockets.empty()) continue;  // the interface is gone
      return false;
    }
    if (sockets.empty() && ::listen(one.socket, SOMAXCONN) != 0) return false;
    one.is_listening = sockets.empty();
    const std::optional<IpEndpoint> own = IpEndpoint::own_of(one.socket);
    if (!own) return false;
    port = own->port;
    sockets.push_back(std::move(one));
  }
  sockets_ = std::move(sockets);
  port_ = port;
  return true;
}

void HeartbeatListener::listen(Socket& socket) {
  if (!socket.is_listening) socket.is_listening = ::listen(socket.socket, SOMAXCONN) == 0;
}

void HeartbeatListener::watch(Socket& socket, bool on) const {
  epoll_event event{};
  event.events = EPOLLIN;
  if (socket.is_listening) {
    ::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, socket.socket, &event);
  }
}

void HeartbeatListener::open(const std::optional<HostAddresses>& hosts) {
  for (size_t i = 1; i < sockets_.size(); ++i) {
    Socket& socket = sockets_[i];
    if (hosts) {
      attach_filter(socket.socket, hosts->filter());
    } else {
      detach_filter(socket.socket);
    }
    if (socket.is_listening) continue;
    listen(socket);
    if (!is_resting_) watch(socket, true);
  }
}

void HeartbeatListener::shut() {
  for (size_t i = 1; i < sockets_.size(); ++i) {
    Socket& socket = sockets_[i];
    if (!socket.is_listening) continue;
    if (!is_resting_) watch(socket, false);
    ::shutdown(socket.socket, SHUT_RDWR);
    socket.is_listening = false;
  }
}

// If the next call cannot be accepted because files run out, epoll would report it again and again.
// So it pauses until the next `tidy`.
void HeartbeatListener::set_resting(bool on) {
  if (on == is_resting_) return;
  is_resting_ = on;
  for (Socket& socket : sockets_) watch(socket, !on);
}

void HeartbeatListener::look(TimePoint now) {
  take_calls(now);
  for (Call& call : waiting_) {
    hear(call);
  }
  std::erase_if(waiting_, [](const Call& call) { return !call.socket.is_valid(); });
}

void HeartbeatListener::take_calls(TimePoint now) {
  for (const Socket& socket : sockets_) {
    // Many calls at once must not keep this thread from its other work.
    for (size_t i = 0; i < kMaxWaiting && !is_resting_ && take_call(socket, now); ++i) {
    }
  }
}

/// Returns false if there is no call.
bool HeartbeatListener::take_call(const Socket& socket, TimePoint now) {
  if (!socket.is_listening) return false;
  Call call{socket.socket.accept(), now};
  if (!call.socket.is_valid()) {
    if (errno == ECONNABORTED || errno == EINTR) return true;
    if (errno != EAGAIN) set_resting(true);
    return false;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, call.socket, &event) != 0) {
    return true;  // the caller will call again
  }
  if (waiting_.size() == kMaxWaiting) {
    waiting_.pop_front();
  }
  waiting_.push_back(std::move(call));
  return true;
}

/// Marks the number of the call as used, so that nobody can use it again.
bool HeartbeatListener::is_for_this(const std::optional<HeartbeatHello>& hello) {
  if (!hello || hello->receiver != process_) {
    return false;
  }
  uint64_t& last = numbers_[{hello->sender, hello->topic}];
  return hello->number > std::exchange(last, std::max(last, hello->number));
}

void HeartbeatListener::hear(Call& call) {
  while (call.num_bytes < call.bytes.size()) {
    const ssize_t count = ::recv(call.socket, call.bytes.data() + call.num_bytes,
                                 call.bytes.size() - call.num_bytes, 0);
    if (count <= 0) {
      if (count == 0 || (errno != EAGAIN && errno != EINTR)) call.socket.close();
      return;
    }
    call.num_bytes += static_cast<size_t>(count);
  }
  if (!call.hello) {
    call.hello = HeartbeatHello::decode(call.bytes, HeartbeatHello::Turn::kCall, key_);
    if (!is_for_this(call.hello)) {
      call.socket.close();
      return;
    }
    // The whole hello has arrived: what follows it must not wake the thread.
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, call.socket, nullptr);
  }
  if (call.hello->is_break_notice()) {
    break_notices_.push_back(*call.hello);
    call.socket.close();
  } else if (call.hello->topic == HeartbeatHello::Topic::kAdmit) {
    if (const std::optional<IpEndpoint> caller = IpEndpoint::peer_of(call.socket)) {
      admission_calls_.push_back({caller->address, std::move(call.socket)});
    }
    call.socket.close();
  } else if (expected_.contains(call.hello->sender)) {
    answer(call);
  }
}

void HeartbeatListener::answer(Call& call) {
  HeartbeatHello hello = *call.hello;
  std::swap(hello.sender, hello.receiver);
  const auto bytes = hello.encode(HeartbeatHello::Turn::kAnswer, key_);
  const ssize_t sent = ::send(call.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) {
    answered_.insert_or_assign({hello.receiver, hello.incarnation, hello.topic},
                               Answered{hello, std::move(call.socket)});
  }
  call.socket.close();
}

void HeartbeatListener::tidy(TimePoint now) {
  set_resting(false);
  for (Call& call : waiting_) {
    if (now - call.since >= kPatience) call.socket.close();
  }
  look(now);
  std::erase_if(answered_, [](const auto& entry) { return !drain(entry.second.socket); });
}

void HeartbeatListener::hang_up(uint64_t process, uint32_t incarnation) {
  std::erase_if(answered_, [&](const auto& entry) {
    const auto& [caller, for_incarnation, topic] = entry.first;
    return caller == process && for_incarnation <= incarnation;
  });
}

void HeartbeatListener::close() {
  look({});  // callers that may be answered are told that this process leaves
  for (auto& [key, call] : answered_) {
    drain(call.socket);  // otherwise the kernel resets the connection, and the last message may be
                         // lost
    const auto bytes = call.hello.encode(HeartbeatHello::Turn::kLeft, key_);
    ::send(call.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  answered_.clear();
  waiting_.clear();
  sockets_.clear();
}

}  // namespace q7x2
