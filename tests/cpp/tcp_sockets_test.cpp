// What is known of the sockets of a UCX worker.
#include "transport/quirks/tcp_sockets.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "watched_connection.h"

namespace q7x2 {
namespace {

class TcpSockets : public test::WatchedConnection {
 protected:
  /// More than the peer's kernel takes.
  void fill() {
    const std::string block(1 << 16, 'x');
    while (send(socket_.get(), block.data(), block.size(), MSG_DONTWAIT) > 0) {
    }
  }
  /// All that comes until the sender's kernel has nothing left.
  void drain() {
    std::string block(1 << 16, 0);
    while (unacknowledged_bytes(worker_.get()) > 0) {
      recv(peer_.get(), block.data(), block.size(), MSG_DONTWAIT);
      std::this_thread::yield();
    }
  }
};

TEST_F(TcpSockets, AreFound) {
  const std::vector<Watched> interfaces = watched_by(worker_.get());
  ASSERT_EQ(interfaces.size(), 1U);
  EXPECT_EQ(interfaces[0].fd, interface_.get());
  const std::vector<Watched> sockets = watched_by(interface_.get());
  ASSERT_EQ(sockets.size(), 1U);
  EXPECT_EQ(sockets[0].fd, socket_.get());
  EXPECT_EQ(sockets[0].watch.data.ptr, record_.data());
  EXPECT_TRUE(is_tcp(socket_.get()));
  EXPECT_FALSE(is_tcp(interface_.get()));
}

TEST_F(TcpSockets, WithNothingToSendAllIsAcknowledged) {
  EXPECT_EQ(unacknowledged_bytes(worker_.get()), 0U);
}

TEST_F(TcpSockets, WhatThePeersKernelDoesNotTakeIsNotAcknowledged) {
  fill();
  EXPECT_GT(unacknowledged_bytes(worker_.get()), 0U);
  drain();
}

TEST_F(TcpSockets, ASilentHostIsNotWaitedFor) {
  fill();
  EXPECT_GT(unacknowledged_bytes(worker_.get(), {IpAddress::v4(INADDR_LOOPBACK + 1)}), 0U);
  EXPECT_EQ(unacknowledged_bytes(worker_.get(), {kLoopback}), 0U);
  drain();
}

TEST_F(TcpSockets, AWorkerWithoutSocketsWaitsForNobody) {
  const test::Descriptor worker(epoll_create1(0));
  EXPECT_EQ(unacknowledged_bytes(worker.get()), 0U);
}

}  // namespace
}  // namespace q7x2
