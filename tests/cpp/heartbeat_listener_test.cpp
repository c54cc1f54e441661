// Anybody can call the port: what is no hello for this process costs little and changes nothing.
#include "transport/heartbeat_listener.h"

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

using Challenge = HeartbeatHello::Challenge;
using Turn = HeartbeatHello::Turn;

constexpr Challenge kChallenge{std::byte{2}};  // of the caller

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

/// What the listener sends at once.
Challenge challenge_of(HeartbeatListener& listener, const OwnedFd& fd) {
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  Challenge challenge{};
  while (!is_readable(fd, 1) && Clock::now() < give_up) listener.look(Clock::now());
  EXPECT_EQ(::recv(fd, challenge.data(), challenge.size(), MSG_WAITALL),
            static_cast<ssize_t>(challenge.size()));
  return challenge;
}

/// The hello of a caller that knows the key. Returns the bytes.
HeartbeatHello::Bytes say(HeartbeatListener& listener, const OwnedFd& fd, HeartbeatHello hello) {
  hello.challenge = kChallenge;
  const auto bytes = hello.encode(Turn::kCall, kKey, challenge_of(listener, fd));
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

std::optional<HeartbeatHello> answer_to(const OwnedFd& fd) {
  HeartbeatHello::Bytes bytes;
  if (::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size())) {
    return std::nullopt;
  }
  return HeartbeatHello::decode(bytes, Turn::kAnswer, kKey, kChallenge);
}

TEST(HeartbeatListener, AnswersThoseWhomItExpects) {
  HeartbeatListener listener(kMe, kKey);
  ASSERT_NE(listener.port(), 0);
  listener.expect(kPeer);
  const OwnedFd fd = call(listener);
  say(listener, fd, {kPeer, kMe, 3});
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

  listener.close(HeartbeatEnd::kLeft);
  char last = 0;
  EXPECT_EQ(::recv(fd, &last, 1, 0), 1);
  EXPECT_EQ(last, static_cast<char>(HeartbeatEnd::kLeft));
  EXPECT_EQ(::recv(fd, &last, 1, 0), 0);
}

TEST(HeartbeatListener, AnswersACallerThatCameBeforeItWasMet) {
  HeartbeatListener listener(kMe, kKey);
  const OwnedFd fd = call(listener);
  say(listener, fd, {kPeer, kMe, 0});
  look_until(listener, [&] { return listener.num_waiting() == 1; });
  EXPECT_EQ(listener.num_answered(), 0U);
  listener.expect(kPeer);
  listener.tidy(Clock::now());
  EXPECT_EQ(listener.num_answered(), 1U);
}

/// Whether the listener ends a call that says this.
bool is_dropped(HeartbeatListener& listener, const OwnedFd& fd,
                const std::vector<std::byte>& bytes) {
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
    const OwnedFd fd = call(listener);
    challenge_of(listener, fd);
    std::vector<std::byte> bytes(HeartbeatHello::kBytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_TRUE(is_dropped(listener, fd, bytes));
  }
  const auto is_refused = [&](const HeartbeatHello& hello, Turn turn, const MessageKey& key,
                              size_t changed_bit) {
    const OwnedFd fd = call(listener);
    auto bytes = hello.encode(turn, key, challenge_of(listener, fd));
    if (changed_bit < 8 * bytes.size()) {
      bytes[changed_bit / 8] ^= static_cast<std::byte>(1 << changed_bit % 8);
    }
    return is_dropped(listener, fd, {bytes.begin(), bytes.end()});
  };
  constexpr size_t kNoBit = 8 * HeartbeatHello::kBytes;
  EXPECT_TRUE(is_refused({kPeer, kMe + 1, 0}, Turn::kCall, kKey, kNoBit));
  EXPECT_TRUE(is_refused({kPeer, kMe, 0}, Turn::kCall, MessageKey{}, kNoBit)) << "another secret";
  EXPECT_TRUE(is_refused({kPeer, kMe, 0}, Turn::kAnswer, kKey, kNoBit)) << "reflected";
  for (size_t bit = 0; bit < kNoBit; bit += 13) {
    EXPECT_TRUE(is_refused({kPeer, kMe, 0}, Turn::kCall, kKey, bit)) << bit;
  }
  EXPECT_EQ(listener.num_answered(), 0U);
  EXPECT_EQ(listener.num_waiting(), 0U);
}

TEST(HeartbeatListener, ARecordedHelloIsWorthNothing) {
  HeartbeatListener listener(kMe, kKey);
  listener.expect(kPeer);
  const OwnedFd fd = call(listener);
  const auto recorded = say(listener, fd, {kPeer, kMe, 0});
  look_until(listener, [&] { return listener.num_answered() == 1; });
  const OwnedFd again = call(listener);
  challenge_of(listener, again);
  EXPECT_TRUE(is_dropped(listener, again, {recorded.begin(), recorded.end()}));
  // The call that it would have replaced goes on.
  EXPECT_TRUE(answer_to(fd));
  EXPECT_EQ(listener.num_answered(), 1U);
  EXPECT_FALSE(is_readable(fd, 0));
}

// The kernel of a stopped process takes heartbeats, but the process sends no challenge.
TEST(HeartbeatListener, HearsHeartbeatsBeforeTheHello) {
  HeartbeatListener listener(kMe, kKey);
  listener.expect(kPeer);
  const OwnedFd fd = call(listener);
  const std::string beats(200, '.');
  say(fd, beats.data(), beats.size());
  say(listener, fd, {kPeer, kMe, 0});
  look_until(listener, [&] { return listener.num_answered() == 1; });
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
  say(listener, fd, {kPeer, kMe, 0});
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
    say(listener, fd, {kPeer, kMe, 0});
    look_until(listener, [&] { return listener.num_answered() == 1; });
  }
  look_until(listener, [&] { return listener.num_waiting() == 0; });
  listener.tidy(Clock::now());
  EXPECT_EQ(listener.num_answered(), 0U);
}

TEST(HeartbeatHello, IsAcceptedOnlyAsItWasMade) {
  const HeartbeatHello hello{0x0123456789abcdef, 0xfedcba9876543210, 7, 1, {std::byte{3}}};
  const auto bytes = hello.encode(Turn::kCall, kKey, kChallenge);
  const auto got = HeartbeatHello::decode(bytes, Turn::kCall, kKey, kChallenge);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->sender, hello.sender);
  EXPECT_EQ(got->receiver, hello.receiver);
  EXPECT_EQ(got->incarnation, hello.incarnation);
  EXPECT_EQ(got->path, hello.path);
  EXPECT_EQ(got->challenge, hello.challenge);
  EXPECT_FALSE(HeartbeatHello::decode(bytes, Turn::kAnswer, kKey, kChallenge));
  EXPECT_FALSE(HeartbeatHello::decode(bytes, Turn::kCall, MessageKey{}, kChallenge));
  EXPECT_FALSE(HeartbeatHello::decode(bytes, Turn::kCall, kKey, Challenge{}));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(HeartbeatHello::decode(flipped, Turn::kCall, kKey, kChallenge)) << bit;
  }
}

}  // namespace
}  // namespace q7x2
