// What the processes of a bootstrap send each other, and bytes that are something else.
#include "transport/peer/bootstrap_message.h"

#include <cstdint>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

BootstrapMessage example() {
  BootstrapMessage message;
  message.kind = BootstrapKind::kFailure;
  message.key = std::string("scope\n7\0", 8);
  message.peer_info = "peer_info";
  message.process = ~uint64_t{0};
  message.list = 3;
  message.exchange = "peer_info";
  message.round = 11;
  message.body = pack_pieces({"a", "", std::string(5000, 'b')});
  message.members = "ranks 0, 2";
  message.subject = 2;
  message.code = ErrorCode::kTimeout;
  message.text = "why";
  return message;
}

TEST(BootstrapMessage, IsReadAsItWasWritten) {
  const auto read = BootstrapMessage::decode(example().encode());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->encode(), example().encode());
  EXPECT_EQ(read->key, example().key);
  EXPECT_EQ(read->process, ~uint64_t{0});
  EXPECT_EQ(read->code, ErrorCode::kTimeout);
  EXPECT_EQ(unpack_pieces(read->body, 3)[2], std::string(5000, 'b'));
  EXPECT_THROW(unpack_pieces(read->body, 2), Error);
  EXPECT_THROW(unpack_pieces("nothing", 1), Error);
}

TEST(BootstrapMessage, OtherBytesAreDropped) {
  const std::string bytes = example().encode();
  EXPECT_FALSE(BootstrapMessage::decode(""));
  EXPECT_FALSE(BootstrapMessage::decode(bytes.substr(0, bytes.size() - 1)));
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string other = bytes;
    other[random() % other.size()] = static_cast<char>(random());
    if (const auto read = BootstrapMessage::decode(other)) {  // what is read is sound
      EXPECT_LE(static_cast<int>(read->code), static_cast<int>(ErrorCode::kInternal));
      try {
        unpack_pieces(read->body, 3);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace q7x2
