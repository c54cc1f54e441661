// Handles come from anywhere: every text is a handle or is refused.
#include "transport/handle.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

const JobSecret kSecret("");

Card example(uint64_t process = 0x0123456789abcdefULL) {
  Card card;
  card.process = process;
  card.pid = 4242;
  card.host_key = "boot/ipc/pid";
  card.hostname = "node-1";
  card.address = std::string("\0\xff address\0", 11);
  card.beside = {{"eth1", 0x0a4e0001, 24}};
  card.transports = "posix, sysv, tcp";
  return card;
}

std::string refusal(const std::string& text, const JobSecret& secret = kSecret) {
  try {
    Handle::decode(text, secret);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
}

TEST(Handle, CarriesTheProcessAndItsRank) {
  Card card = example();
  card.slot = 7;
  card.world_size = 3;
  card.memory = "key";
  card.algorithms = "ring";
  card.renewed = {{1, 2, 1, 0}};
  const Handle handle = Handle::decode(Handle{card, 5}.encode(kSecret), kSecret);
  EXPECT_EQ(handle.rank, 5);
  EXPECT_EQ(handle.card.encode(), example().encode()) << "what belongs to a group is left out";
  EXPECT_EQ(Handle::decode(Handle{card}.encode(kSecret), kSecret).rank, -1);
}

TEST(Handle, RefusesOtherTexts) {
  const std::string text = Handle{example(), 1}.encode(kSecret);
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

TEST(Handle, IsOfOneJob) {
  const JobSecret secret("ours");
  const JobSecret other("theirs");
  const std::string text = Handle{example(), 1}.encode(secret);
  EXPECT_EQ(refusal(text, secret), "");
  EXPECT_NE(refusal(text, other).find("Q7X2_SECRET, which is set here"), std::string::npos);
  EXPECT_NE(refusal(text).find("Q7X2_SECRET, which is not set here"), std::string::npos);
}

TEST(Handle, UnorderedOnesFollowTheirRanksAndThenJoin) {
  const std::vector<Handle> handles = {
      {example(5)}, {example(1), 3}, {example(2), 0}, {example(4)}, {example(3), 3}};
  std::vector<uint64_t> order;
  for (const Handle& handle : in_rank_order(handles)) {
    order.push_back(handle.card.process);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 1, 3, 4, 5}));
}

}  // namespace
}  // namespace q7x2
