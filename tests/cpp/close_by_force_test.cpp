// What becomes of sockets of UCX when a connection is closed by force.
#include "transport/quirks/close_by_force.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "failing_allocation.h"
#include "watched_connection.h"

namespace q7x2 {
namespace {

class CloseByForceTest : public test::WatchedConnection {
 protected:
  /// What a round of progress is told of the socket.
  uint32_t events() {
    epoll_event event{};
    return epoll_wait(interface_.get(), &event, 1, 0) == 1 ? event.events : 0U;
  }
  /// What the peer reads: nothing while the connection lives.
  std::optional<ssize_t> peer_reads() {
    char byte = 0;
    const ssize_t n = recv(peer_.get(), &byte, 1, MSG_DONTWAIT);
    return n < 0 ? std::nullopt : std::optional(n);
  }

  static constexpr uint32_t kBoth = EPOLLIN | EPOLLOUT;
};

TEST_F(CloseByForceTest, TheOneThatLosesABitIsShutDown) {
  record_[12] = 0x43;
  {
    const CloseByForce close(worker_.get());
    EXPECT_TRUE(close.matters());
    record_[12] = 0x42;
  }
  EXPECT_EQ(peer_reads(), 0) << "the end of the connection";
  EXPECT_NE(events() & EPOLLIN, 0U) << "so that UCX sees the end too";
}

TEST_F(CloseByForceTest, AllOthersLive) {
  { const CloseByForce close(worker_.get()); }
  EXPECT_FALSE(peer_reads());
  send(peer_.get(), "x", 1, 0);
  EXPECT_EQ(events() & kBoth, kBoth);
}

// As when both ends open a connection at the same time, and UCX keeps the peer's socket beside it.
TEST_F(CloseByForceTest, OneThatGainsABitLives) {
  record_[12] = 0x41;
  std::fill_n(&record_[20], sizeof(int), char(0xff));
  {
    const CloseByForce close(worker_.get());
    record_[12] = 0x43;
    std::fill_n(&record_[20], sizeof(int), char(0));
  }
  EXPECT_FALSE(peer_reads());
}

TEST_F(CloseByForceTest, NothingIsReadOrWrittenMeanwhile) {
  const CloseByForce close(worker_.get());
  send(peer_.get(), "x", 1, 0);
  EXPECT_EQ(events() & kBoth, 0U);
}

TEST_F(CloseByForceTest, WhatTheClosedOneHasNotReadIsDropped) {
  send(peer_.get(), "x", 1, 0);
  record_[12] = 1;
  {
    const CloseByForce close(worker_.get());
    record_[12] = 0;
  }
  char byte = 0;
  EXPECT_EQ(recv(socket_.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(CloseByForceTest, WhatUcxAsksForInTheMeantimeStays) {
  {
    const CloseByForce close(worker_.get());
    watch(interface_.get(), socket_.get(), EPOLLOUT, EPOLL_CTL_MOD);
  }
  send(peer_.get(), "x", 1, 0);
  EXPECT_EQ(events() & kBoth, static_cast<uint32_t>(EPOLLOUT));
}

TEST_F(CloseByForceTest, IdleSocketsDoNotMatter) {
  watch(interface_.get(), socket_.get(), EPOLLIN, EPOLL_CTL_MOD);
  EXPECT_FALSE(CloseByForce(worker_.get()).matters());
}

TEST_F(CloseByForceTest, WithoutMemoryItThrowsNothingAndSocketsGoOn) {
  bool over = false;
  for (int nth = 1; !over; ++nth) {
    test::fail_allocation(nth);
    { const CloseByForce close(worker_.get()); }
    over = test::allocation_will_fail();
    test::fail_allocation(0);
    EXPECT_FALSE(peer_reads()) << nth;
    EXPECT_NE(events() & EPOLLOUT, 0U) << nth;
  }
}

TEST_F(CloseByForceTest, ARecordThatCannotBeReadIsLeftAlone) {
  epoll_event event{};
  event.events = kBoth;
  event.data.u64 = 8;
  EXPECT_EQ(epoll_ctl(interface_.get(), EPOLL_CTL_MOD, socket_.get(), &event), 0);
  EXPECT_FALSE(CloseByForce(worker_.get()).matters());
}

}  // namespace
}  // namespace q7x2
