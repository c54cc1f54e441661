// Addresses of IPv4 and IPv6 as values, and the ends of connections.
#include "base/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "base/owned_fd.h"

namespace q7x2 {
namespace {

IpAddress parse(const std::string& text) {
  const std::vector<IpAddress> found = resolve(text);
  EXPECT_EQ(found.size() > 0, true) << text;
  return found.empty() ? IpAddress() : found.front();
}

TEST(IpAddress, HasTheTextItWasMadeFrom) {
  for (const std::string text : {"10.0.0.7", "127.0.0.1", "255.255.255.255", "fd00::7", "::1"}) {
    EXPECT_EQ(parse(text).text(), text);
  }
  EXPECT_EQ(IpAddress::v4(0x0a000007).text(), "10.0.0.7");
  EXPECT_EQ(IpAddress().text(), "::");
}

TEST(IpAddress, KnowsItsFamily) {
  const IpAddress four = parse("10.0.0.7");
  EXPECT_TRUE(four.is_v4());
  EXPECT_EQ(four.v4(), 0x0a000007U);
  EXPECT_EQ(four.wire_bytes(), std::string("\x0a\x00\x00\x07", 4));
  const IpAddress six = parse("fd00::7");
  EXPECT_FALSE(six.is_v4());
  EXPECT_EQ(six.wire_bytes().size(), 16U);
  EXPECT_FALSE(IpAddress().is_v4());
}

TEST(IpAddress, KnowsTheLoopback) {
  for (const char* text : {"127.0.0.1", "127.8.9.1", "::1"}) {
    EXPECT_TRUE(parse(text).is_loopback()) << text;
  }
  for (const char* text : {"10.0.0.1", "128.0.0.1", "::2", "fe80::1"}) {
    EXPECT_FALSE(parse(text).is_loopback()) << text;
  }
}

TEST(IpAddress, KnowsWhatIsOfOneLink) {
  for (const char* text : {"fe80::1", "febf::1"}) EXPECT_TRUE(parse(text).is_link_local()) << text;
  for (const char* text : {"fec0::1", "fd00::1", "::1", "10.0.0.1"}) {
    EXPECT_FALSE(parse(text).is_link_local()) << text;
  }
}

TEST(IpAddress, OfANameIpv4ComesFirst) {
  const std::vector<IpAddress> found = resolve("localhost");
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(std::ranges::is_partitioned(found, &IpAddress::is_v4));
  EXPECT_TRUE(resolve("no-such-host.invalid").empty());
}

class EndpointTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EndpointTest, BothEndsOfAConnectionAreTold) {
  const IpAddress here = parse(GetParam());
  const OwnedFd listener(::socket(here.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any_port({here, 0});
  if (listener < 0 || ::bind(listener, any_port.get(), any_port.size()) != 0) {
    GTEST_SKIP() << "this machine has no " << here.text();
  }
  ASSERT_EQ(::listen(listener, 1), 0);
  const auto port = IpEndpoint::own_of(listener);
  ASSERT_TRUE(port);
  EXPECT_EQ(port->address, here);
  EXPECT_GT(port->port, 0);
  EXPECT_EQ(port->text(), here.text() + " port " + std::to_string(port->port));
  EXPECT_FALSE(IpEndpoint::peer_of(listener));

  const OwnedFd caller(::socket(here.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress to(*port);
  ASSERT_EQ(::connect(caller, to.get(), to.size()), 0);
  const OwnedFd taken(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_EQ(IpEndpoint::peer_of(caller), port);
  EXPECT_EQ(IpEndpoint::peer_of(taken), IpEndpoint::own_of(caller));
}

INSTANTIATE_TEST_SUITE_P(Loopback, EndpointTest, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& each) {
                           return std::string(each.param) == "::1" ? "Ipv6" : "Ipv4";
                         });

TEST(IpEndpoint, OtherSocketsHaveNone) {
  const OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(IpEndpoint::own_of(socket));
  EXPECT_FALSE(IpEndpoint::peer_of(socket));
}

}  // namespace
}  // namespace q7x2
