// Handles come from anywhere: every text is a handle or is refused.
#include "transport/bootstrap/peer_address.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

const JobSecret kSecret("");

PeerInfo example(uint64_t process = 0x0123456789abcdefULL) {
  PeerInfo peer_info;
  peer_info.process = process;
  peer_info.pid = 4242;
  peer_info.host_key = "boot/ipc/pid";
  peer_info.hostname = "node-1";
  peer_info.address = std::string("\0\xff address\0", 11);
  peer_info.rails = {{"eth1", 0x0a4e0001, 24}};
  peer_info.transports = "posix, sysv, tcp";
  return peer_info;
}

std::string refusal(const std::string& text, const JobSecret& secret = kSecret) {
  try {
    PeerAddress::decode(text, secret);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
}

TEST(PeerAddress, CarriesTheProcessAndItsRank) {
  PeerInfo peer_info = example();
  peer_info.slot = 7;
  peer_info.world_size = 3;
  peer_info.memory = "key";
  peer_info.algorithms = "ring";
  peer_info.renewed = {{1, 2, 1, 0}};
  const PeerAddress handle =
      PeerAddress::decode(PeerAddress{peer_info, 5}.encode(kSecret), kSecret);
  EXPECT_EQ(handle.rank, 5);
  EXPECT_EQ(handle.peer_info.encode(), example().encode()) << "what belongs to a group is left out";
  EXPECT_EQ(PeerAddress::decode(PeerAddress{peer_info}.encode(kSecret), kSecret).rank, -1);
}

TEST(PeerAddress, RefusesOtherTexts) {
  const std::string text = PeerAddress{example(), 1}.encode(kSecret);
  EXPECT_NE(refusal("").find("does not begin with"), std::string::npos);
  EXPECT_NE(refusal("gloo:0:1").find("'gloo:0:1'"), std::string::npos);
  EXPECT_NE(refusal("q7x2-handle:2:").find("length"), std::string::npos);
  EXPECT_NE(refusal("q7x2-handle:1:" + text.substr(14)).find("does not begin with"),
            std::string::npos);
  EXPECT_NE(refusal(text + "0").find("damaged"), std::string::npos);
  EXPECT_NE(refusal(text.substr(0, text.size() - 2)).find("damaged"), std::string::npos);
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string other = text;
    const size_t at = 14 + random() % (other.size() - 14);
    other[at] = static_cast<char>(random() % 256);
    if (other != text) {
      EXPECT_NE(refusal(other), "") << other;
    }
  }
}

TEST(PeerAddress, IsOfOneJob) {
  const JobSecret secret("ours");
  const JobSecret other("theirs");
  const std::string text = PeerAddress{example(), 1}.encode(secret);
  EXPECT_EQ(refusal(text, secret), "");
  EXPECT_NE(refusal(text, other).find("Q7X2_SECRET, which is set here"), std::string::npos);
  EXPECT_NE(refusal(text).find("Q7X2_SECRET, which is not set here"), std::string::npos);
}

TEST(PeerAddress, UnorderedOnesFollowTheirRanksAndThenJoin) {
  const std::vector<PeerAddress> handles = {
      {example(5)}, {example(1), 3}, {example(2), 0}, {example(4)}, {example(3), 3}};
  std::vector<uint64_t> order;
  for (const PeerAddress& handle : in_rank_order(handles)) {
    order.push_back(handle.peer_info.process);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 1, 3, 4, 5}));
}

}  // namespace
}  // namespace q7x2
