// FlakyProxy: a bad network between two processes. Passes on bytes in pieces of random length, and
// resets connections, damages, holds back or repeats bytes when a test asks for it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <list>
#include <random>
#include <stdexcept>
#include <string>

#include "base/ip_address.h"
#include "base/owned_fd.h"

namespace q7x2::stream_test {

class FlakyProxy {
 public:
  /// Connections to `port()` lead to this port of the loopback.
  FlakyProxy(uint16_t target, uint64_t seed)
      : target_(target),
        random_(seed),
        listener_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    const SocketAddress any({kLoopback, 0});
    if (::bind(listener_, any.get(), any.size()) != 0 || ::listen(listener_, SOMAXCONN) != 0) {
      throw std::runtime_error("no port for a proxy");
    }
    port_ = IpEndpoint::own_of(listener_)->port;
  }

  uint16_t port() const { return port_; }

  /// A connection is reset after about this many bytes; 0: never.
  size_t bytes_between_cuts = 0;
  /// One byte of about this many is changed; 0: none.
  size_t bytes_between_flips = 0;
  /// Connections are accepted and led on.
  bool is_open = true;
  /// Bytes of the connection with this number (from 1) are held back; -1: of all; 0: of none.
  int stalled = 0;
  /// How many connections came.
  int num_connections = 0;
  int cuts = 0;

  /// Resets all connections.
  void cut_all() {
    for (Line& line : lines_) cut(line);
    lines_.clear();
  }

  void step() {
    accept();
    for (Line& line : lines_) {
      if (stalled == -1 || stalled == line.number) continue;
      pass(line, line.near, line.far, line.to_far);
      pass(line, line.far, line.near, line.to_near);
    }
    lines_.remove_if([](const Line& line) { return line.is_over; });
  }

 private:
  struct Line {
    int number;
    OwnedFd near;
    OwnedFd far;
    std::string to_far = {};
    std::string to_near = {};
    bool is_over = false;
  };

  void accept() {
    while (true) {
      OwnedFd near(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (near < 0) return;
      OwnedFd far(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const SocketAddress to({kLoopback, target_});
      if (!is_open || ::connect(far, to.get(), to.size()) != 0) continue;
      lines_.push_back({++num_connections, std::move(near), std::move(far)});
    }
  }

  void cut(Line& line) {
    ++cuts;
    const linger now{1, 0};
    for (const int fd : {int{line.near}, int{line.far}}) {
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    line.is_over = true;
  }

  void pass(Line& line, int from, int to, std::string& waiting) {
    if (line.is_over) return;
    std::array<char, 16384> bytes;
    if (waiting.empty()) {
      const size_t most = 1 + random_() % bytes.size();
      const ssize_t count = ::recv(from, bytes.data(), most, MSG_DONTWAIT);
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        line.is_over = true;
        return;
      }
      waiting.assign(bytes.data(), static_cast<size_t>(count));
      damage(waiting);
    }
    if (bytes_between_cuts > 0 && random_() % bytes_between_cuts < waiting.size()) {
      // Perhaps in the middle of a frame.
      (void)::send(to, waiting.data(), random_() % (waiting.size() + 1),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
      cut(line);
      return;
    }
    const ssize_t count = ::send(to, waiting.data(), waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN) line.is_over = true;
    if (count > 0) waiting.erase(0, static_cast<size_t>(count));
  }

  void damage(std::string& bytes) {
    if (bytes_between_flips == 0 || random_() % bytes_between_flips >= bytes.size()) return;
    bytes[random_() % bytes.size()] ^= static_cast<char>(1 + random_() % 255);
  }

  const uint16_t target_;
  std::mt19937_64 random_;
  OwnedFd listener_;
  uint16_t port_ = 0;
  std::list<Line> lines_;
};

}  // namespace q7x2::stream_test
