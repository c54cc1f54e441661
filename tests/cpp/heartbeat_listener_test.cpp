// Anybody can call the port: what is no hello for this process costs little and changes nothing.
#include "transport/peer/heartbeat_listener.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/owned_fd.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMe = 11;
constexpr uint64_t kPeer = 22;
constexpr MessageKey kKey{std::byte{1}};

using Turn = HeartbeatHello::Turn;

OwnedFd call(const HeartbeatListener& listener) {
  OwnedFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listener.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

void say(const OwnedFd& fd, const void* bytes, size_t length) {
  EXPECT_EQ(::send(fd, bytes, length, MSG_NOSIGNAL), static_cast<ssize_t>(length));
}

bool is_readable(int fd, int milliseconds) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, milliseconds) == 1;
}

/// The hello of a caller that knows the key, with a number of its own. Returns the bytes.
HeartbeatHello::Bytes say(const OwnedFd& fd, HeartbeatHello hello) {
  static uint64_t calls = 0;
  hello.number = ++calls;
  const auto bytes = hello.encode(Turn::kCall, kKey);
  say(fd, bytes.data(), bytes.size());
  return bytes;
}

/// Looks until `condition` holds.
void look_until(HeartbeatListener& listener, const std::function<bool()>& condition) {
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    ASSERT_LT(Clock::now(), give_up);
    listener.look(Clock::now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::optional<HeartbeatHello> heard(const OwnedFd& fd, Turn turn) {
  HeartbeatHello::Bytes bytes;
  if (::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;
  }
  return HeartbeatHello::decode(bytes, turn, kKey);
}

std::optional<HeartbeatHello> answer_to(const OwnedFd& fd) {
  return heard(fd, Turn::kAnswer);
}

TEST(HeartbeatListener, AnswersThoseWhomItExpects) {
  HeartbeatListener listener(kMe, kKey);
  ASSERT_NE(listener.port(), 0);
  listener.expect(kPeer);
  const OwnedFd fd = call(listener);
  say(fd, {kPeer, kMe, 3});
  EXPECT_TRUE(is_readable(listener.fd(), 10'000));
  look_until(listener, [&] { return listener.num_answered() == 1; });
  const auto answer = answer_to(fd);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->sender, kMe);
  EXPECT_EQ(answer->receiver, kPeer);
  EXPECT_EQ(answer->incarnation, 3U);
  // Heartbeats wake nobody, and a look at them keeps the connection.
  say(fd, "...", 3);
  EXPECT_FALSE(is_readable(listener.fd(), 100));
  listener.tidy(Clock::now());
  EXPECT_EQ(listener.num_answered(), 1U);
  EXPECT_FALSE(is_readable(fd, 0));

  listener.close();
  const auto end = heard(fd, Turn::kLeft);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->receiver, kPeer);
  EXPECT_EQ(end->number, answer->number);
  char last = 0;
  EXPECT_EQ(::recv(fd, &last, 1, 0), 0);
}

TEST(HeartbeatListener, AnswersACallerThatCameBeforeItWasMet) {
  HeartbeatListener listener(kMe, kKey);
  const OwnedFd fd = call(listener);
  say(fd, {kPeer, kMe, 0});
  look_until(listener, [&] { return listener.num_waiting() == 1; });
  EXPECT_EQ(listener.num_answered(), 0U);
  listener.expect(kPeer);
  listener.tidy(Clock::now());
  EXPECT_EQ(listener.num_answered(), 1U);
}

/// Whether the listener ends a call that says this.
bool is_dropped(HeartbeatListener& listener, const std::vector<std::byte>& bytes) {
  const OwnedFd fd = call(listener);
  say(fd, bytes.data(), bytes.size());
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  while (!is_readable(fd, 1) && Clock::now() < give_up) listener.look(Clock::now());
  char byte = 0;
  return ::recv(fd, &byte, 1, 0) <= 0;
}

TEST(HeartbeatListener, DropsWhatIsNoHelloForIt) {
  HeartbeatListener listener(kMe, kKey);
  listener.expect(kPeer);
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> bytes(HeartbeatHello::kBytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_TRUE(is_dropped(listener, bytes));
  }
  const auto is_refused = [&](const HeartbeatHello& hello, Turn turn, const MessageKey& key) {
    const auto bytes = hello.encode(turn, key);
    return is_dropped(listener, {bytes.begin(), bytes.end()});
  };
  EXPECT_TRUE(is_refused({kPeer, kMe + 1, 0, {}, 1}, Turn::kCall, kKey));
  EXPECT_TRUE(is_refused({kPeer, kMe, 0, {}, 1}, Turn::kCall, MessageKey{})) << "another secret";
  EXPECT_TRUE(is_refused({kPeer, kMe, 0, {}, 1}, Turn::kAnswer, kKey)) << "reflected";
  const auto hello = HeartbeatHello{kPeer, kMe, 0, {}, 1}.encode(Turn::kCall, kKey);
  for (size_t bit = 0; bit < 8 * hello.size(); bit += 13) {
    std::vector<std::byte> changed(hello.begin(), hello.end());
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(is_dropped(listener, changed)) << bit;
  }
  EXPECT_EQ(listener.num_answered(), 0U);
  EXPECT_EQ(listener.num_waiting(), 0U);
}

TEST(HeartbeatListener, ARecordedHelloIsWorthNothing) {
  HeartbeatListener listener(kMe, kKey);
  listener.expect(kPeer);
  const OwnedFd fd = call(listener);
  const auto recorded = say(fd, {kPeer, kMe, 0});
  look_until(listener, [&] { return listener.num_answered() == 1; });
  EXPECT_TRUE(is_dropped(listener, {recorded.begin(), recorded.end()}));
  // The call that it would have replaced goes on.
  EXPECT_TRUE(answer_to(fd));
  EXPECT_EQ(listener.num_answered(), 1U);
  EXPECT_FALSE(is_readable(fd, 0));
}

TEST(HeartbeatListener, SilentStrangersAreFewAndGoSoon) {
  HeartbeatListener listener(kMe, kKey);
  std::vector<OwnedFd> strangers;
  for (size_t i = 0; i < 2 * HeartbeatListener::kMaxWaiting; ++i) {
    strangers.push_back(call(listener));
    if (i % 2 == 0) say(strangers.back(), "half a hello", 12);
    look_until(listener, [&] { return listener.num_waiting() > 0; });
    EXPECT_LE(listener.num_waiting(), HeartbeatListener::kMaxWaiting);
  }
  // Nobody is locked out by them.
  listener.expect(kPeer);
  const OwnedFd fd = call(listener);
  say(fd, {kPeer, kMe, 0});
  look_until(listener, [&] { return listener.num_answered() == 1; });
  listener.tidy(Clock::now() + HeartbeatListener::kPatience + std::chrono::seconds(1));
  EXPECT_EQ(listener.num_waiting(), 0U);
  EXPECT_EQ(listener.num_answered(), 1U);
}

TEST(HeartbeatListener, ForgetsCallersThatHangUp) {
  HeartbeatListener listener(kMe, kKey);
  listener.expect(kPeer);
  {
    const OwnedFd knock = call(listener);
    look_until(listener, [&] { return listener.num_waiting() == 1; });
    const OwnedFd fd = call(listener);
    say(fd, {kPeer, kMe, 0});
    look_until(listener, [&] { return listener.num_answered() == 1; });
  }
  look_until(listener, [&] { return listener.num_waiting() == 0; });
  listener.tidy(Clock::now());
  EXPECT_EQ(listener.num_answered(), 0U);
}

// A peer may call for the next connection before this process has given up the one that broke.
TEST(HeartbeatListener, HangsUpOnADeadConnectionButNotOnTheNext) {
  HeartbeatListener listener(kMe, kKey);
  listener.expect(kPeer);
  const OwnedFd broken = call(listener);
  say(broken, {kPeer, kMe, 3});
  const OwnedFd next = call(listener);
  say(next, {kPeer, kMe, 4});
  look_until(listener, [&] { return listener.num_answered() == 2; });
  EXPECT_TRUE(answer_to(broken) && answer_to(next));

  listener.hang_up(kPeer, 3);
  EXPECT_EQ(listener.num_answered(), 1U);
  char last = 0;
  EXPECT_EQ(::recv(broken, &last, 1, 0), 0) << "without a word";
  EXPECT_FALSE(is_readable(next, 50));
  // It still answers: heartbeats are about the process, and not about the connection.
  const OwnedFd again = call(listener);
  say(again, {kPeer, kMe, 3});
  look_until(listener, [&] { return listener.num_answered() == 2; });
}

TEST(HeartbeatHello, IsAcceptedOnlyAsItWasMade) {
  const HeartbeatHello hello{0x0123456789abcdef, 0xfedcba9876543210, 7,
                             HeartbeatHello::Topic::kPrivate, 99};
  const auto bytes = hello.encode(Turn::kCall, kKey);
  const auto got = HeartbeatHello::decode(bytes, Turn::kCall, kKey);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->sender, hello.sender);
  EXPECT_EQ(got->receiver, hello.receiver);
  EXPECT_EQ(got->incarnation, hello.incarnation);
  EXPECT_EQ(got->topic, hello.topic);
  EXPECT_EQ(got->number, hello.number);
  EXPECT_FALSE(HeartbeatHello::decode(bytes, Turn::kAnswer, kKey));
  EXPECT_FALSE(HeartbeatHello::decode(bytes, Turn::kCall, MessageKey{}));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(HeartbeatHello::decode(flipped, Turn::kCall, kKey)) << bit;
  }
}

}  // namespace
}  // namespace q7x2
