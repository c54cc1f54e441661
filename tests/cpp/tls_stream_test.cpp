// TlsStream: what one end writes the other end reads, however the kernel cuts it, and nothing else.
#include "transport/stream/tls_stream.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "stream_pair.h"
#include "transport/net/private_socket.h"

namespace q7x2::stream_test {
namespace {

MessageKey key_of(int number) {
  MessageKey key;
  key.fill(static_cast<std::byte>(number));
  return key;
}

/// Two connected sockets on the loopback, with small buffers.
std::pair<PrivateSocket, PrivateSocket> sockets() {
  PrivateSocket listener = PrivateSocket::open(AF_INET);
  const SocketAddress any({kLoopback, 0});
  EXPECT_EQ(::bind(listener, any.get(), any.size()), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  PrivateSocket caller = PrivateSocket::open(AF_INET);
  const int bytes = 8192;
  ::setsockopt(caller, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  const SocketAddress address(*IpEndpoint::own_of(listener));
  ::connect(caller, address.get(), address.size());
  PrivateSocket called;
  while (!called.is_valid()) called = listener.accept();
  return {std::move(caller), std::move(called)};
}

struct Ends {
  explicit Ends(int caller_key = 1, int listener_key = 1) {
    auto [first, second] = sockets();
    caller = std::make_unique<TlsStream>(std::move(first), context, StreamEnd::kCaller,
                                         key_of(caller_key));
    listener = std::make_unique<TlsStream>(std::move(second), context, StreamEnd::kListener,
                                           key_of(listener_key));
  }

  TlsContext context;
  std::unique_ptr<TlsStream> caller;
  std::unique_ptr<TlsStream> listener;
};

/// Moves `sent` from one end to the other in pieces of random lengths. False: a connection ended.
bool moves(ByteStream& from, ByteStream& to, const Bytes& sent, std::mt19937_64& random) {
  Bytes got(sent.size());
  size_t written = 0;
  size_t read = 0;
  while (read < sent.size()) {
    std::array<iovec, 3> parts;
    for (iovec& part : parts) {
      const size_t length = std::min<size_t>(random() % 70'000, sent.size() - written);
      part = {const_cast<std::byte*>(sent.data()) + written, length};
      written += length;
    }
    size_t asked = 0;
    for (const iovec& part : parts) asked += part.iov_len;
    const auto count = asked == 0 ? std::optional<size_t>(0) : from.write(parts);
    if (!count || !from.flush()) return false;
    written -= asked - *count;
    const std::array<iovec, 1> room{
        iovec{got.data() + read, std::min<size_t>(random() % 70'000, got.size() - read)}};
    const auto taken = to.read(room);
    if (!taken) return false;
    read += *taken;
  }
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(from.has_unsent());
  return true;
}

TEST(TlsStream, BytesArriveInBothDirections) {
  std::mt19937_64 random(1);
  Ends ends;
  EXPECT_TRUE(ends.caller->is_shaking_hands());
  for (const size_t size : {size_t{1}, size_t{72}, size_t{1} << 14, size_t{3'000'000}}) {
    ASSERT_TRUE(moves(*ends.caller, *ends.listener, random_bytes(size, size), random)) << size;
    ASSERT_TRUE(moves(*ends.listener, *ends.caller, random_bytes(size, size), random)) << size;
  }
  EXPECT_FALSE(ends.caller->is_shaking_hands());
}

TEST(TlsStream, AnotherKeyIsRefused) {
  std::mt19937_64 random(1);
  Ends ends(1, 2);
  EXPECT_FALSE(moves(*ends.caller, *ends.listener, random_bytes(100, 1), random));
}

TEST(TlsStream, NothingButTlsIsRead) {
  std::mt19937_64 random(1);
  auto [first, second] = sockets();
  PlainStream caller(std::move(first));
  const TlsContext context;
  TlsStream listener(std::move(second), context, StreamEnd::kListener, key_of(1));
  EXPECT_FALSE(moves(caller, listener, random_bytes(100'000, 1), random));
}

/// Flips one bit of what passes from the second connection to the first.
TEST(TlsStream, AChangedBitEndsTheConnection) {
  for (size_t at = 0; at < 20; ++at) {
    auto [first, between_first] = sockets();
    auto [between_second, second] = sockets();
    const TlsContext context;
    TlsStream caller(std::move(first), context, StreamEnd::kCaller, key_of(1));
    TlsStream listener(std::move(second), context, StreamEnd::kListener, key_of(1));
    const Bytes sent = random_bytes(2000, at);
    const std::array<iovec, 1> all{iovec{const_cast<std::byte*>(sent.data()), sent.size()}};
    Bytes got(sent.size());
    const std::array<iovec, 1> room{iovec{got.data(), got.size()}};
    std::array<std::byte, 65536> bytes;
    size_t passed = 0;
    bool is_over = false;
    for (int i = 0; i < 10'000 && !is_over; ++i) {
      is_over = !caller.write(all) || !listener.read(room);
      const ssize_t to = ::recv(between_first, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (to > 0) {
        const size_t count = static_cast<size_t>(to);
        const size_t flipped = 97 * at;
        if (passed <= flipped && flipped < passed + count) bytes[flipped - passed] ^= std::byte{4};
        passed += count;
        ::send(between_second, bytes.data(), count, 0);
      }
      const ssize_t back = ::recv(between_second, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (back > 0) ::send(between_first, bytes.data(), static_cast<size_t>(back), 0);
    }
    EXPECT_TRUE(is_over) << "byte " << 97 * at;
  }
}

StreamOptions encrypted() {
  StreamOptions options;
  options.tls = std::make_shared<const TlsContext>();
  return options;
}

TEST(TlsStream, ALaneOverTls) {
  Pair pair(encrypted());
  for (const size_t size : {size_t{0}, size_t{10}, size_t{100'000}, size_t{20'000'000}}) {
    const Bytes sent = random_bytes(size, size);
    Bytes got(size);
    Bytes back(size);
    const uint64_t there = pair.b.receive(got, 1);
    const uint64_t here = pair.a.receive(back, 2);
    pair.a.send(sent, 1);
    pair.b.send(sent, 2);
    ASSERT_TRUE(pair.run_until([&] { return pair.b.is_done(there) && pair.a.is_done(here); }));
    EXPECT_EQ(got, sent);
    EXPECT_EQ(back, sent);
  }
}

TEST(TlsStream, ALaneWithoutTlsGetsNoConnection) {
  Side called(2, encrypted());
  Side caller(1);
  caller.path = &caller.lane.open({called.self, 7, {{kLoopback, called.port}}, /*calls=*/true});
  called.path = &called.lane.open({caller.self, 7, {}, /*calls=*/false});
  Bytes message = random_bytes(10, 1);
  caller.send(message, 1);
  for (int i = 0; i < 2000; ++i) {
    caller.lane.progress();
    called.lane.progress();
  }
  EXPECT_EQ(called.path->num_connections(), 0U);
  EXPECT_EQ(caller.path->num_connections(), 0U);
}

}  // namespace
}  // namespace q7x2::stream_test
