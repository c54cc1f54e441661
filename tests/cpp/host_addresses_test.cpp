// Which hosts a socket takes packets of: by the kernel, on addresses of the loopback.
#include "transport/net/host_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/owned_fd.h"

namespace q7x2::test {
namespace {

constexpr uint32_t kHost = 0x7f000000;  // 127.0.0.x

sockaddr_in at(uint32_t address, uint16_t port = 0) {
  sockaddr_in it{};
  it.sin_family = AF_INET;
  it.sin_addr.s_addr = htonl(address);
  it.sin_port = htons(port);
  return it;
}

IpAddress ipv6(const char* text) {
  IpAddress::Bytes address;
  EXPECT_EQ(::inet_pton(AF_INET6, text, address.data()), 1);
  return IpAddress(address);
}

/// A port that takes connections of `hosts`.
class Port {
 public:
  explicit Port(const HostAddresses& hosts)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = at(kHost + 1);
    socklen_t size = sizeof(own);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&own), size), 0);
    attach_filter(socket_, hosts.filter());
    EXPECT_EQ(::listen(socket_, 100), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &size), 0);
    port_ = ntohs(own.sin_port);
  }

  operator int() const { return socket_; }

  /// Whether a connection from 127.0.0.`last` is made. One that is dropped stays in the making.
  bool takes(uint32_t last) const {
    const OwnedFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_in own = at(kHost + last);
    EXPECT_EQ(::bind(caller, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    const sockaddr_in to = at(kHost + 1, port_);
    ::connect(caller, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    // On the loopback the answer comes within the call.
    pollfd entry{caller, POLLOUT, 0};
    return ::poll(&entry, 1, 0) == 1;
  }

 private:
  OwnedFd socket_;
  uint16_t port_ = 0;
};

HostAddresses hosts(const std::set<uint32_t>& last) {
  HostAddresses some;
  for (const uint32_t each : last) some.add(IpAddress::v4(kHost + each));
  return some;
}

TEST(HostAddresses, OnlyTheirConnectionsAreMade) {
  const Port port(hosts({3, 5, 6, 7, 9}));
  for (const uint32_t last : {3U, 5U, 6U, 7U, 9U}) EXPECT_TRUE(port.takes(last)) << last;
  for (const uint32_t last : {1U, 2U, 4U, 8U, 10U, 250U}) EXPECT_FALSE(port.takes(last)) << last;
}

TEST(HostAddresses, NoneTakesNothingUntilAnotherFilterComes) {
  const Port port{HostAddresses()};
  EXPECT_FALSE(port.takes(2));
  attach_filter(port, hosts({2}).filter());
  EXPECT_TRUE(port.takes(2));
  EXPECT_FALSE(port.takes(3));
  detach_filter(port);
  EXPECT_TRUE(port.takes(3));
}

TEST(HostAddresses, IpV6AddressesDoNotDisturb) {
  HostAddresses both = hosts({4});
  both.add(ipv6("fd00::1"));
  const Port port(both);
  EXPECT_TRUE(port.takes(4));
  EXPECT_FALSE(port.takes(5));
}

// Those of the smallest gaps are one range: nobody of the job is shut out.
TEST(HostAddresses, OfManyAllAreTaken) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  HostAddresses many;
  for (int i = 0; i < 4096; ++i) many.add(IpAddress::v4(static_cast<uint32_t>(random())));
  for (int i = 0; i < 500; ++i) {
    IpAddress::Bytes address;
    for (uint8_t& byte : address) byte = static_cast<uint8_t>(random());
    many.add(IpAddress(address));
  }
  many.add(IpAddress::v4(kHost + 77));
  EXPECT_LT(many.filter().size(), size_t{BPF_MAXINSNS});
  const Port port(many);
  EXPECT_TRUE(port.takes(77));
}

TEST(HostAddresses, PassThroughText) {
  HostAddresses some = hosts({1, 200});
  some.add(ipv6("fd00::1"));
  some.add(ipv6("2001:db8::7"));
  const std::string text = some.encode();
  const HostAddresses again = HostAddresses::decode(text);
  EXPECT_TRUE(again.contains(some) && some.contains(again));
  EXPECT_EQ(again.encode(), text);
  EXPECT_THROW(HostAddresses::decode(""), Error);
  EXPECT_THROW(HostAddresses::decode(text.substr(0, text.size() - 1)), Error);
  EXPECT_THROW(HostAddresses::decode(text + "x"), Error);
  EXPECT_TRUE(HostAddresses::decode(HostAddresses().encode()).empty());
}

TEST(HostAddresses, ContainWhatWasAdded) {
  HostAddresses some;
  for (const IpAddress& address : {IpAddress::v4(kHost + 9), ipv6("fd00::1")}) {
    EXPECT_FALSE(some.contains(address)) << address.text();
    some.add(address);
    EXPECT_TRUE(some.contains(address)) << address.text();
  }
  EXPECT_FALSE(some.contains(ipv6("fd00::2")));
}

}  // namespace
}  // namespace q7x2::test
