#include "transport/heartbeat_listener.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace q7x2 {
namespace {

/// Reads and drops what has arrived. False: the connection is over.
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

HeartbeatListener::HeartbeatListener(uint64_t process, const MessageKey& key)
    : process_(process), key_(key), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) {
    throw Error(ErrorCode::kTransport, std::string("epoll_create1: ") + std::strerror(errno));
  }
  listen();
}

void HeartbeatListener::listen() {
  socket_ = PrivateSocket::open();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!socket_.is_valid() || ::bind(socket_, any, length) != 0 ||
      ::listen(socket_, SOMAXCONN) != 0 || ::getsockname(socket_, any, &length) != 0) {
    log(Level::kWarn, "no port for heartbeats (" + std::string(std::strerror(errno)) +
                          "): other hosts notice late if this one falls silent");
    return;
  }
  port_ = ntohs(address.sin_port);
  set_listening(true);
}

void HeartbeatListener::set_listening(bool on) {
  if (on == is_listening_ || !socket_.is_valid()) {
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, socket_, &event) == 0) {
    is_listening_ = on;
  }
}

void HeartbeatListener::look(TimePoint now) {
  take_calls(now);
  for (Call& call : waiting_) {
    hear(call);
  }
  std::erase_if(waiting_, [](const Call& call) { return !call.socket.is_valid(); });
}

void HeartbeatListener::take_calls(TimePoint now) {
  while (is_listening_) {
    Call call{socket_.accept(), now};
    if (!call.socket.is_valid()) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      // Without a file for the call it would be announced again and again: until the next `tidy`.
      if (errno != EAGAIN) set_listening(false);
      return;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, call.socket, &event) != 0) {
      continue;  // it calls again
    }
    if (waiting_.size() == kMaxWaiting) {
      waiting_.pop_front();
    }
    waiting_.push_back(std::move(call));
  }
}

/// Uses the number of the call, so that nobody can use it again.
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
    // The whole hello is there: what follows it must not wake anybody.
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, call.socket, nullptr);
  }
  if (call.hello->is_farewell()) {
    farewells_.push_back(*call.hello);
    call.socket.close();
  } else if (expected_.contains(call.hello->sender)) {
    answer(call);
  }
}

void HeartbeatListener::answer(Call& call) {
  const HeartbeatHello& hello = *call.hello;
  const auto bytes =
      HeartbeatHello{process_, hello.sender, hello.incarnation, hello.topic, hello.number}.encode(
          HeartbeatHello::Turn::kAnswer, key_);
  const ssize_t sent = ::send(call.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) {
    answered_[{hello.sender, hello.incarnation, hello.topic}] = std::move(call.socket);
  }
  call.socket.close();
}

void HeartbeatListener::tidy(TimePoint now) {
  set_listening(true);
  for (Call& call : waiting_) {
    if (now - call.since >= kPatience) call.socket.close();
  }
  look(now);
  std::erase_if(answered_, [](const auto& entry) { return !drain(entry.second); });
}

void HeartbeatListener::end(PrivateSocket& socket, HeartbeatEnd why) {
  drain(socket);  // else the kernel resets the connection, and the reason may be lost
  const char byte = static_cast<char>(why);
  ::send(socket, &byte, 1, MSG_NOSIGNAL);
  socket.close();
}

void HeartbeatListener::hang_up(uint64_t process, uint32_t incarnation, HeartbeatEnd why) {
  expected_.erase(process);
  for (auto& [key, socket] : answered_) {
    const auto& [caller, for_incarnation, topic] = key;
    if (caller == process && for_incarnation <= incarnation) end(socket, why);
  }
  std::erase_if(answered_, [](const auto& entry) { return !entry.second.is_valid(); });
}

void HeartbeatListener::close(HeartbeatEnd why) {
  look({});  // who may be answered shall hear why
  for (auto& [key, socket] : answered_) {
    end(socket, why);
  }
  answered_.clear();
  waiting_.clear();
  set_listening(false);
  socket_.close();
}

}  // namespace q7x2
