// A host is silent if its kernel neither takes nor refuses a connection.
#include "transport/peer/host_watch.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLimit{400};

class Port {
 public:
  Port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(address.sin_port);
  }
  ~Port() {
    close(fd_);
    for (const int fd : callers_) close(fd);
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  uint16_t number() const { return number_; }
  void answer(int backlog = 64) { EXPECT_EQ(listen(fd_, backlog), 0); }
  /// With its backlog full, the kernel drops what comes.
  void fall_silent() {
    answer(/*backlog=*/0);
    for (int i = 0; i < 4; ++i) {
      callers_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(number_);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      connect(callers_.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    }
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM, 0);
  uint16_t number_ = 0;
  std::vector<int> callers_;
};

/// Looks until the host is silent, or for three times the limit.
bool falls_silent(HostWatch& watch, Clock::time_point begin) {
  while (Clock::now() < begin + 3 * kLimit) {
    if (watch.is_silent(Clock::now())) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

TEST(HostWatch, AHostThatTakesCallsLives) {
  Port port;
  port.answer();
  const auto begin = Clock::now();
  HostWatch watch({kLoopback, port.number()}, kLimit, begin);
  EXPECT_FALSE(falls_silent(watch, begin));
}

TEST(HostWatch, AHostThatRefusesLives) {
  const Port port;
  const auto begin = Clock::now();
  HostWatch watch({kLoopback, port.number()}, kLimit, begin);
  EXPECT_FALSE(falls_silent(watch, begin));
}

TEST(HostWatch, AHostThatDoesNeitherIsSilent) {
  Port port;
  port.fall_silent();
  const auto begin = Clock::now();
  HostWatch watch({kLoopback, port.number()}, kLimit, begin);
  ASSERT_TRUE(falls_silent(watch, begin));
  EXPECT_GE(Clock::now() - begin, kLimit * 9 / 10);
  EXPECT_EQ(watch.silence(begin), ", or the link to it, has not answered for 0.4 s (Q7X2_SILENCE)");
}

TEST(HostWatch, WhatIsHeardCounts) {
  Port port;
  port.fall_silent();
  const auto begin = Clock::now();
  HostWatch watch({kLoopback, port.number()}, kLimit, begin);
  EXPECT_FALSE(watch.is_silent(begin + kLimit / 2));
  watch.hear(begin + kLimit / 2);
  EXPECT_FALSE(watch.is_silent(begin + kLimit));
  EXPECT_TRUE(watch.is_silent(begin + kLimit / 2 + kLimit));
}

}  // namespace
}  // namespace q7x2
