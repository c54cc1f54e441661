// Connections of a path that strangers make. They are refused.
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include <gtest/gtest.h>

#include "stream_pair.h"
#include "transport/net/connection_attempt.h"
#include "transport/stream/stream_hello.h"

namespace q7x2::stream_test {
namespace {

/// Connects to `side`, says `bytes`, and returns whether an answer comes.
bool is_answered(Side& side, std::span<const std::byte> bytes) {
  const PrivateSocket socket = start_connecting({kLoopback, side.port});
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (outcome(socket) == Attempt::kPending) {
  }
  EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  while (std::chrono::steady_clock::now() < give_up) {
    side.lane.progress();
    std::array<std::byte, StreamHello::kBytes> answer;
    const ssize_t count = ::recv(socket, answer.data(), answer.size(), MSG_DONTWAIT);
    if (count >= 0 || errno != EAGAIN) return count > 0;
  }
  ADD_FAILURE() << "neither answered nor hung up";
  return false;
}

class StreamStrangers : public testing::Test {
 protected:
  StreamStrangers() { b.path = &b.lane.open({a, 7, {}, false}); }

  const JobSecret secret{"a secret of tests"};
  const Identity a = identity(1);
  Side b{2};
  const MessageKey key = secret.key_to(identity(2));
  const StreamHello hello{1, 2, 7, 1, 99, 1 << 20};
  const StreamHello::Turn call = StreamHello::Turn::kCall;
};

TEST_F(StreamStrangers, AHelloIsAnsweredOnce) {
  const auto bytes = hello.encode(call, key);
  EXPECT_TRUE(is_answered(b, bytes));
  EXPECT_FALSE(is_answered(b, bytes)) << "replayed";
  EXPECT_EQ(b.lane.refused_calls(), 1);
  StreamHello next = hello;
  next.number = 2;
  EXPECT_TRUE(is_answered(b, next.encode(call, key)));
}

TEST_F(StreamStrangers, AWrongProofIsRefused) {
  EXPECT_FALSE(is_answered(b, hello.encode(call, JobSecret("another one").key_to(identity(2)))));
  EXPECT_FALSE(is_answered(b, hello.encode(call, secret.key_to(a))));
  EXPECT_FALSE(is_answered(b, hello.encode(StreamHello::Turn::kAnswer, key)));
  for (size_t i = 0; i < StreamHello::kBytes; ++i) {
    auto damaged = hello.encode(call, key);
    damaged[i] ^= std::byte{1};
    EXPECT_FALSE(is_answered(b, damaged)) << i;
  }
  StreamHello other = hello;
  other.receiver = 3;
  EXPECT_FALSE(is_answered(b, other.encode(call, key)));
  EXPECT_TRUE(is_answered(b, hello.encode(call, key)));
}

TEST_F(StreamStrangers, ACallForAPathToComeWaits) {
  const PrivateSocket socket = start_connecting({kLoopback, b.port});
  while (outcome(socket) == Attempt::kPending) {
  }
  StreamHello early = hello;
  early.epoch = 8;
  const auto bytes = early.encode(call, key);
  ASSERT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), 72);
  std::array<std::byte, StreamHello::kBytes> answer;
  for (int i = 0; i < 1000; ++i) b.lane.progress();
  EXPECT_EQ(::recv(socket, answer.data(), answer.size(), MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  b.lane.open({a, 8, {}, false});
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  ssize_t count = -1;
  while (count < 0 && std::chrono::steady_clock::now() < give_up) {
    b.lane.progress();
    count = ::recv(socket, answer.data(), answer.size(), MSG_DONTWAIT);
  }
  ASSERT_EQ(count, 72);
  EXPECT_TRUE(StreamHello::decode(answer, StreamHello::Turn::kAnswer, key));
}

}  // namespace
}  // namespace q7x2::stream_test
