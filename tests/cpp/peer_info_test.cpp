// Peer infos come from a store that anybody can write to: every input decodes or is refused.
#include "transport/peer/peer_info.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

PeerInfo example() {
  PeerInfo peer_info;
  peer_info.process = 0x0123456789abcdefULL;
  peer_info.key[15] = std::byte{7};
  peer_info.pid = 4242;
  peer_info.slot = 2047;
  peer_info.world_size = 65535;
  peer_info.host_key = "boot/ipc/pid";
  peer_info.hostname = "node-1";
  peer_info.address = std::string("\0\xff address\0", 11);
  peer_info.heartbeat_address = IpAddress::v4(0x0a4d0001);
  peer_info.heartbeat_port = 40001;
  peer_info.stream_port = 40002;
  peer_info.behind_nat = true;
  peer_info.outside = {IpAddress::v4(0xcb007105), IpAddress(IpAddress::Bytes{0xfd, 7})};
  peer_info.rails = {{"eth1", 0x0a4e0001, 24}, {"eth2", 0x0a4e0101, 31}};
  peer_info.transports = "posix, sysv, tcp";
  peer_info.device_path = DevicePath::kDirect;
  peer_info.device_memory = DeviceMemory::kMapped;
  peer_info.algorithms = "ring,aggregator:2";
  peer_info.attached_hook = "PowerSGD(rank=4)";
  peer_info.memory = std::string("\0key", 4);
  peer_info.renewed = {{0xfedcba9876543210ULL, 3, 2, 1}};
  return peer_info;
}

void expect_equal(const PeerInfo& a, const PeerInfo& b) {
  EXPECT_EQ(a.process, b.process);
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.pid, b.pid);
  EXPECT_EQ(a.slot, b.slot);
  EXPECT_EQ(a.world_size, b.world_size);
  EXPECT_EQ(a.host_key, b.host_key);
  EXPECT_EQ(a.hostname, b.hostname);
  EXPECT_EQ(a.address, b.address);
  EXPECT_EQ(a.heartbeat_address, b.heartbeat_address);
  EXPECT_EQ(a.heartbeat_port, b.heartbeat_port);
  EXPECT_EQ(a.stream_port, b.stream_port);
  EXPECT_EQ(a.behind_nat, b.behind_nat);
  EXPECT_EQ(a.outside, b.outside);
  EXPECT_EQ(a.transports, b.transports);
  EXPECT_EQ(a.device_path, b.device_path);
  EXPECT_EQ(a.device_memory, b.device_memory);
  EXPECT_EQ(a.algorithms, b.algorithms);
  EXPECT_EQ(a.attached_hook, b.attached_hook);
  EXPECT_EQ(a.memory, b.memory);
  ASSERT_EQ(a.rails.size(), b.rails.size());
  for (size_t i = 0; i < a.rails.size(); ++i) {
    EXPECT_EQ(a.rails[i].name, b.rails[i].name);
    EXPECT_EQ(a.rails[i].address, b.rails[i].address);
    EXPECT_EQ(a.rails[i].prefix, b.rails[i].prefix);
  }
  ASSERT_EQ(a.renewed.size(), b.renewed.size());
  for (size_t i = 0; i < a.renewed.size(); ++i) {
    EXPECT_EQ(a.renewed[i].process, b.renewed[i].process);
    EXPECT_EQ(a.renewed[i].incarnation, b.renewed[i].incarnation);
    EXPECT_EQ(a.renewed[i].opened, b.renewed[i].opened);
    EXPECT_EQ(a.renewed[i].opened_rail, b.renewed[i].opened_rail);
  }
}

/// The refusal, or "" where it decodes. Anything but a refusal of the right type fails the test.
std::string refusal(const std::string& bytes) {
  // A copy of exactly this length, so that reading beyond it is seen by a sanitizer.
  const std::unique_ptr<char[]> exact(new char[bytes.size()]);
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  try {
    PeerInfo::decode({exact.get(), bytes.size()});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
    EXPECT_STRNE(error.what(), "");
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an Error: " << error.what();
  }
  return "";
}

void put_length(std::string& bytes, size_t at, uint32_t length) {
  std::memcpy(bytes.data() + at, &length, sizeof(length));
}

// Where the fields of an encoded peer info begin.
constexpr size_t kVersionAt = 4 + 4;
constexpr size_t kHostKeyAt = kVersionAt + 4 + 8 + 16 + 4 + 2 + 2;

TEST(PeerInfo, IncarnationOfAConnection) {
  EXPECT_EQ(example().connection(0xfedcba9876543210ULL).incarnation, 3U);
  EXPECT_EQ(example().connection(0xfedcba9876543210ULL).opened, 2U);
  EXPECT_EQ(example().connection(1).incarnation, 0U);
}

TEST(PeerInfo, RoundTrip) {
  expect_equal(PeerInfo::decode(example().encode()), example());
  PeerInfo least;
  least.pid = 1;
  expect_equal(PeerInfo::decode(least.encode()), least);
  PeerInfo long_one = example();
  long_one.address.assign(100'000, 'x');
  expect_equal(PeerInfo::decode(long_one.encode()), long_one);
}

TEST(PeerInfo, EveryPrefixIsRefused) {
  const std::string bytes = example().encode();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(refusal(bytes.substr(0, length)), "") << length << " bytes";
  }
}

TEST(PeerInfo, LeftoversAreRefused) {
  EXPECT_NE(refusal(example().encode() + '\0').find("left over"), std::string::npos);
}

TEST(PeerInfo, AnotherBackendsBytesAreRefused) {
  std::string bytes = example().encode();
  bytes[4] ^= 1;
  EXPECT_NE(refusal(bytes).find("do all ranks use"), std::string::npos);
  EXPECT_NE(refusal(std::string("\4\0\0\0gloo and then some more bytes", 33)), "");
  EXPECT_NE(refusal("127.0.0.1:12345"), "");
}

TEST(PeerInfo, AnotherVersionIsRefusedAndNamed) {
  std::string bytes = example().encode();
  put_length(bytes, kVersionAt, 77);
  const std::string why = refusal(bytes);
  EXPECT_NE(why.find("77"), std::string::npos) << why;
  EXPECT_NE(why.find("version"), std::string::npos) << why;
}

TEST(PeerInfo, HostileLengthsAreRefused) {
  for (const uint32_t length : {0xffffffffU, 0x80000000U, 0x7fffffffU, 0x10000U}) {
    for (const size_t at : {size_t{0}, kHostKeyAt}) {
      std::string bytes = example().encode();
      put_length(bytes, at, length);
      EXPECT_NE(refusal(bytes).find("cut short"), std::string::npos) << length << " at " << at;
    }
  }
}

TEST(PeerInfo, APidThatCannotBeIsRefused) {
  for (const int32_t pid : {0, -1}) {
    PeerInfo peer_info = example();
    peer_info.pid = pid;
    EXPECT_NE(refusal(peer_info.encode()).find("PID"), std::string::npos) << pid;
  }
}

TEST(PeerInfo, FlippedBitsDecodeOrAreRefused) {
  const std::string bytes = example().encode();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    refusal(flipped);
  }
}

TEST(PeerInfo, RandomBytesDecodeOrAreRefused) {
  std::mt19937_64 random(2);
  const std::string valid = example().encode();
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = valid;
    // Half of them keep a valid beginning, so that the later fields are reached.
    const size_t from = i % 2 == 0 ? random() % 8 : random() % bytes.size();
    bytes.resize(random() % 2 == 0 ? bytes.size() : random() % (2 * bytes.size()));
    for (uint64_t changes = 1 + random() % 8; changes > 0; --changes) {
      if (from < bytes.size()) {
        bytes[from + random() % (bytes.size() - from)] = static_cast<char>(random());
      }
    }
    refusal(bytes);
  }
}

TEST(PeerInfoNat, WhoIsCalledWhere) {
  const auto on = [](const std::string& host, uint32_t address) {
    PeerInfo each;
    each.host_key = host;
    each.heartbeat_address = IpAddress::v4(address);
    each.stream_port = 7;
    return each;
  };
  const PeerInfo plain = on("a", 1);
  PeerInfo hidden = on("b", 2);
  hidden.behind_nat = true;
  PeerInfo forwarded = on("c", 3);
  forwarded.behind_nat = true;
  forwarded.outside = {IpAddress::v4(33)};
  using Endpoints = std::vector<IpEndpoint>;
  const IpEndpoint own_of_hidden{IpAddress::v4(2), 7};
  const IpEndpoint own_of_forwarded{IpAddress::v4(3), 7};
  const IpEndpoint outside{IpAddress::v4(33), 7};
  EXPECT_EQ(stream_addresses(plain, hidden), Endpoints{});
  EXPECT_EQ(stream_addresses(hidden, plain), (Endpoints{{IpAddress::v4(1), 7}}));
  EXPECT_EQ(stream_addresses(plain, forwarded), Endpoints{outside});
  // They may be in the same network.
  EXPECT_EQ(stream_addresses(forwarded, hidden), Endpoints{own_of_hidden});
  EXPECT_EQ(stream_addresses(hidden, forwarded), (Endpoints{outside, own_of_forwarded}));

  EXPECT_FALSE(is_nat_between(plain, on("d", 4)));
  EXPECT_TRUE(is_nat_between(plain, hidden));
  EXPECT_TRUE(is_nat_between(hidden, plain));
  PeerInfo neighbour = hidden;
  neighbour.process = 9;
  EXPECT_FALSE(is_nat_between(hidden, neighbour));
}

}  // namespace
}  // namespace q7x2
