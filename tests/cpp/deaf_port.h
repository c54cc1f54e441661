// A port of this host that does not answer, like a port of a silent host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "base/owned_fd.h"

namespace q7x2::test {

/// Its queue of connections is full, so the kernel drops new ones.
class DeafPort {
 public:
  DeafPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, any, length), 0);
    EXPECT_EQ(::listen(socket_, 0), 0);
    EXPECT_EQ(::getsockname(socket_, any, &length), 0);
    port_ = ntohs(address.sin_port);
    for (int i = 0; i < 4; ++i) {
      callers_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      ::connect(callers_.back(), any, length);
    }
  }
  uint16_t port() const { return port_; }

 private:
  OwnedFd socket_{::socket(AF_INET, SOCK_STREAM, 0)};
  uint16_t port_ = 0;
  std::vector<OwnedFd> callers_;
};

}  // namespace q7x2::test
