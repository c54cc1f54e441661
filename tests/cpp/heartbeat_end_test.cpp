// The end of a heartbeat connection: who writes into it cannot say that a process has left.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <utility>

#include <gtest/gtest.h>

#include "base/owned_fd.h"
#include "monitor_pair.h"
#include "transport/peer/liveness_monitor.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;
using test::eventually;
using test::kKey;
using test::kMe;
using test::kPeer;

// Somebody in the path writes into a connection: the process has not left.
TEST(HeartbeatEnd, WithoutAProofIsNotBelieved) {
  const OwnedFd port(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(own);
  ASSERT_EQ(::bind(port, reinterpret_cast<sockaddr*>(&own), size), 0);
  ASSERT_EQ(::listen(port, 8), 0);
  ASSERT_EQ(::getsockname(port, reinterpret_cast<sockaddr*>(&own), &size), 0);
  LivenessMonitor me(kMe, kKey);
  char who = 0;
  me.watch_host({.process = kPeer, .endpoint = {kLoopback, ntohs(own.sin_port)}, .key = kKey}, &who,
                Clock::now());
  using Turn = HeartbeatHello::Turn;
  // The connection that is answered, what is written into it, and the next call.
  for (int i = 0; i < 3; ++i) {
    const auto look = [&] { EXPECT_TRUE(me.poll(Clock::now()).empty()); };
    ASSERT_TRUE(eventually([&] {
      look();
      pollfd entry{port, POLLIN, 0};
      return ::poll(&entry, 1, 0) == 1;
    }));
    const OwnedFd line(::accept4(port, nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(eventually([&] {
      look();
      pollfd entry{line, POLLIN, 0};
      return ::poll(&entry, 1, 0) == 1;
    }));
    HeartbeatHello::Bytes bytes;
    ASSERT_EQ(::recv(line, bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    auto hello = HeartbeatHello::decode(bytes, Turn::kCall, kKey);
    ASSERT_TRUE(hello);
    std::swap(hello->sender, hello->receiver);
    const auto say = [&](const HeartbeatHello::Bytes& what) {
      ASSERT_EQ(::send(line, what.data(), what.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(what.size()));
    };
    say(hello->encode(Turn::kAnswer, kKey));
    constexpr MessageKey kAnother{std::byte{2}};
    say(hello->encode(Turn::kLeft, kAnother));
    // It hangs up, which is read here as the end.
    ASSERT_TRUE(eventually([&] {
      look();
      char byte = 0;
      return ::recv(line, &byte, 1, MSG_DONTWAIT) == 0;
    }));
  }
  EXPECT_FALSE(me.heartbeat(&who)->is_out_of_reach(Clock::now())) << "it is watched, and was heard";
}

}  // namespace
}  // namespace q7x2
