// What a process says to a relay, and its line to one.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "transport/net/connection_attempt.h"
#include "transport/stream/relay_hello.h"
#include "transport/stream/relay_line.h"

namespace q7x2 {
namespace {

using Kind = RelayHello::Kind;

Identity process(uint64_t number) {
  Identity it{number, {}};
  it.key.fill(static_cast<std::byte>(number));
  return it;
}

TEST(RelayHelloTest, NamesComeFromTheSecretAndTheProcess) {
  const JobSecret secret("a secret of tests");
  const JobSecret other("another secret of tests");
  const RelayHello one = RelayHello::of(Kind::kListen, secret, process(1));
  EXPECT_EQ(one.name, RelayHello::of(Kind::kCall, secret, process(1)).name);
  EXPECT_EQ(one.job, RelayHello::of(Kind::kCall, secret, process(2)).job);
  EXPECT_EQ(one.job, RelayHello::job_with(secret));
  EXPECT_NE(one.name, RelayHello::of(Kind::kCall, secret, process(2)).name);
  EXPECT_NE(one.name, RelayHello::of(Kind::kCall, other, process(1)).name);
  EXPECT_NE(one.job, RelayHello::job_with(other));
}

TEST(RelayHelloTest, HasTheBytesThatTheRelayReads) {
  RelayHello hello;
  hello.kind = Kind::kCall;
  hello.job.fill(std::byte{1});
  hello.name.fill(std::byte{2});
  const RelayHello::Bytes bytes = hello.encode();
  EXPECT_EQ(std::memcmp(bytes.data(), "q7x2rly1C\0\0\0\0\0\0\0", 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 16, hello.job.data(), 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 32, hello.name.data(), 16), 0);
}

/// A port that a test plays the relay at.
class RelayLineTest : public testing::Test {
 protected:
  RelayLineTest() : port_(PrivateSocket::open(AF_INET)) {
    const SocketAddress any({kLoopback, 0});
    EXPECT_EQ(::bind(port_, any.get(), any.size()), 0);
    EXPECT_EQ(::listen(port_, 16), 0);
    options.now = [this] { return now; };
    line.emplace(loop, *IpEndpoint::own_of(port_), hello, options,
                 [this](PrivateSocket socket) { taken.push_back(std::move(socket)); });
  }

  template <typename Holds>
  void run_until(const Holds& holds) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up);
      loop.dispatch();
      line->look(now);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  PrivateSocket accepted() {
    PrivateSocket socket;
    run_until([&] {
      socket = port_.accept();
      return socket.is_valid();
    });
    return socket;
  }
  RelayHello::Bytes heard(int socket) {
    RelayHello::Bytes bytes{};
    run_until([&] {
      return ::recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT) ==
             static_cast<ssize_t>(bytes.size());
    });
    EXPECT_EQ(::recv(socket, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return bytes;
  }
  static void say(int socket, const RelayHello::Name& name) {
    EXPECT_EQ(::send(socket, name.data(), name.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(name.size()));
  }

  const RelayHello hello =
      RelayHello::of(Kind::kListen, JobSecret("a secret of tests"), process(1));
  StreamTime now = StreamClock::now();
  StreamOptions options;
  EventLoop loop;
  std::vector<PrivateSocket> taken;
  std::optional<RelayLine> line;

 private:
  PrivateSocket port_;
};

TEST_F(RelayLineTest, AnswersEachCallWithAConnection) {
  const PrivateSocket relay = accepted();
  EXPECT_EQ(heard(relay), hello.encode());
  EXPECT_FALSE(line->is_registered());
  say(relay, {});
  run_until([&] { return line->is_registered(); });
  for (const int number : {7, 8}) {
    RelayHello answer = hello;
    answer.kind = Kind::kAccept;
    answer.name.fill(static_cast<std::byte>(number));
    say(relay, answer.name);
    const PrivateSocket other_end = accepted();
    EXPECT_EQ(heard(other_end), answer.encode());
    run_until([&] { return !taken.empty(); });
    EXPECT_EQ(::send(other_end, "hi", 2, MSG_NOSIGNAL), 2);
    char bytes[2];
    run_until([&] { return ::recv(taken.back(), bytes, 2, MSG_DONTWAIT) == 2; });
    taken.clear();
  }
}

TEST_F(RelayLineTest, ALineThatBreaksIsMadeAgainAfterAPause) {
  {
    const PrivateSocket relay = accepted();
    heard(relay);
    say(relay, {});
    run_until([&] { return line->is_registered(); });
  }
  run_until([&] { return !line->is_registered(); });
  EXPECT_GT(line->due(), now);
  now = line->due();
  const PrivateSocket again = accepted();
  EXPECT_EQ(heard(again), hello.encode());
}

TEST_F(RelayLineTest, ACallMayArriveInParts) {
  const PrivateSocket relay = accepted();
  heard(relay);
  RelayHello::Name half{};
  half.fill(std::byte{9});
  EXPECT_EQ(::send(relay, half.data(), half.size() / 2, MSG_NOSIGNAL), 8);
  for (int i = 0; i < 10; ++i) loop.dispatch();
  EXPECT_TRUE(taken.empty());
  EXPECT_EQ(::send(relay, half.data(), half.size() / 2, MSG_NOSIGNAL), 8);
  const PrivateSocket other_end = accepted();
  run_until([&] { return !taken.empty(); });
}

}  // namespace
}  // namespace q7x2
