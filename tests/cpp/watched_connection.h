// A TCP connection in the same arrangement as UCX's.
#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include <gtest/gtest.h>

namespace q7x2::test {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) { EXPECT_GE(fd, 0); }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

inline int connected_to(int listener) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  connect(fd, reinterpret_cast<const sockaddr*>(&address), size);
  return fd;
}

inline int listening() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  listen(fd, 1);
  return fd;
}

/// Like UCX: the descriptor of a worker watches that of an interface, which watches a socket that
/// waits for room, with the address of a record.
class WatchedConnection : public ::testing::Test {
 protected:
  WatchedConnection() {
    watch(worker_.get(), interface_.get(), EPOLLIN);
    watch(interface_.get(), socket_.get(), EPOLLIN | EPOLLOUT);
  }
  void watch(int epoll, int fd, uint32_t events, int how = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = record_.data();
    EXPECT_EQ(epoll_ctl(epoll, how, fd, &event), 0);
  }

  std::array<char, 64> record_{};
  const Descriptor listener_{listening()};
  const Descriptor socket_{connected_to(listener_.get())};
  const Descriptor peer_{accept(listener_.get(), nullptr, nullptr)};
  const Descriptor interface_{epoll_create1(0)};
  const Descriptor worker_{epoll_create1(0)};
};

}  // namespace q7x2::test
