// Control messages come off the wire: every input decodes to something valid or is dropped.
#include "transport/peer/control.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr uint64_t kSender = 0xfedcba9876543210ULL;

Control example(ControlType type) {
  Control control;
  control.type = type;
  control.slot = 1023;
  control.sender_slot = 3;
  control.sender = 12;
  control.receiver = 8191;
  control.comes_twice = type == ControlType::kGoodbye;
  if (type == ControlType::kGoodbye) {
    control.sequence = 300;
    for (const size_t bit : {0, 63, 64, 200, 255}) control.unended.set(bit);
  }
  if (type == ControlType::kAbort || type == ControlType::kFailedCall) {
    control.code = ErrorCode::kPeerFailed;
    control.subject = 7;
    control.text = "rank 7 failed: its process has ended";
  }
  if (type == ControlType::kInquiry) {
    control.sequence = uint64_t{1} << 40;
    control.fingerprint = 0x0123456789abcdefULL;
    control.text = "broadcast (sequence 7, 4 bytes, root 0)";
  }
  if (type == ControlType::kAnswer) {
    control.sequence = 7;
    control.state = CallState::kComplete;
    control.subject = 4;
    control.text = "broadcast (sequence 7, 4 bytes, root 0)";
  }
  return control;
}

/// From a copy of exactly this length, so that reading beyond it is seen by a sanitizer.
std::optional<Control> decode(const std::string& bytes) {
  const std::unique_ptr<char[]> exact(new char[bytes.size()]);
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  return Control::decode(kSender, {exact.get(), bytes.size()});
}

void expect_valid(const Control& control) {
  EXPECT_TRUE(control.type == ControlType::kHello || control.type == ControlType::kGoodbye ||
              control.type == ControlType::kAbort || control.type == ControlType::kInquiry ||
              control.type == ControlType::kAnswer || control.type == ControlType::kLastCall ||
              control.type == ControlType::kFailedCall);
  EXPECT_LE(static_cast<int>(control.state), static_cast<int>(CallState::kComplete));
  EXPECT_LE(static_cast<int>(control.code), static_cast<int>(ErrorCode::kInternal));
  EXPECT_LE(control.text.size(), 2048U);
}

TEST(Control, RoundTrip) {
  for (const ControlType type :
       {ControlType::kHello, ControlType::kGoodbye, ControlType::kAbort, ControlType::kInquiry,
        ControlType::kAnswer, ControlType::kLastCall, ControlType::kFailedCall}) {
    const Control sent = example(type);
    const auto got = decode(sent.encode());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->type, sent.type);
    EXPECT_EQ(got->slot, sent.slot);
    EXPECT_EQ(got->sender_slot, sent.sender_slot);
    EXPECT_EQ(got->sender, sent.sender);
    EXPECT_EQ(got->receiver, sent.receiver);
    EXPECT_EQ(got->process, kSender);
    EXPECT_EQ(got->code, sent.code);
    EXPECT_EQ(got->subject, sent.subject);
    EXPECT_EQ(got->text, sent.text);
    EXPECT_EQ(got->sequence, sent.sequence);
    EXPECT_EQ(got->fingerprint, sent.fingerprint);
    EXPECT_EQ(got->state, sent.state);
    EXPECT_EQ(got->comes_twice, sent.comes_twice);
    EXPECT_EQ(got->unended, sent.unended);
  }
}

TEST(Control, EveryCodeRoundTrips) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    Control sent = example(ControlType::kAbort);
    sent.code = static_cast<ErrorCode>(code);
    const auto got = decode(sent.encode());
    ASSERT_TRUE(got) << code;
    EXPECT_EQ(got->code, sent.code);
  }
}

TEST(Control, LongTextIsCut) {
  Control sent = example(ControlType::kAbort);
  sent.text.assign(1 << 20, 'x');
  const auto got = decode(sent.encode());
  ASSERT_TRUE(got);
  EXPECT_GE(got->text.size(), 1024U);
  EXPECT_EQ(got->text, sent.text.substr(0, got->text.size()));
  EXPECT_LT(sent.encode().size(), 4096U) << "fits an eager message";
}

TEST(Control, EveryPrefixAndLeftoversAreDropped) {
  const std::string bytes = example(ControlType::kAbort).encode();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode(bytes.substr(0, length))) << length << " bytes";
  }
  EXPECT_FALSE(decode(bytes + '\0'));
  EXPECT_FALSE(Control::decode(kSender, {}));
}

TEST(Control, UnknownTypesCodesAndVersionsAreDropped) {
  const std::string bytes = example(ControlType::kAbort).encode();
  const auto changed = [&](size_t at, int value) {
    std::string copy = bytes;
    copy[at] = static_cast<char>(value);
    return decode(copy);
  };
  constexpr size_t kVersionAt = 0;
  constexpr size_t kTypeAt = 2;
  constexpr size_t kCodeAt = 3;
  EXPECT_FALSE(changed(kVersionAt, 1));
  EXPECT_FALSE(changed(kVersionAt, bytes[kVersionAt] + 1));
  EXPECT_FALSE(changed(kTypeAt, 0));
  EXPECT_FALSE(changed(kTypeAt, 8));
  EXPECT_FALSE(changed(kTypeAt, 255));
  EXPECT_FALSE(changed(kCodeAt, static_cast<int>(ErrorCode::kInternal) + 1));
  EXPECT_FALSE(changed(kCodeAt, 255));
  constexpr size_t kStateAt = 40;
  EXPECT_TRUE(changed(kStateAt, static_cast<int>(CallState::kComplete)));
  EXPECT_FALSE(changed(kStateAt, static_cast<int>(CallState::kComplete) + 1));
  constexpr size_t kComesTwiceAt = 44;
  EXPECT_TRUE(changed(kComesTwiceAt, 1));
  EXPECT_FALSE(changed(kComesTwiceAt, 2));
}

TEST(Control, RanksAndSlotsThatCannotBeAreDropped) {
  const auto with = [](auto change) {
    Control control = example(ControlType::kAbort);
    change(control);
    return decode(control.encode());
  };
  EXPECT_TRUE(with([](Control& c) { c.subject = -1; }));
  EXPECT_FALSE(with([](Control& c) { c.subject = -2; }));
  EXPECT_FALSE(with([](Control& c) { c.subject = 8192; }));
  EXPECT_FALSE(with([](Control& c) { c.sender = -1; }));
  EXPECT_FALSE(with([](Control& c) { c.sender = 8192; }));
  EXPECT_FALSE(with([](Control& c) { c.receiver = -1; }));
  EXPECT_FALSE(with([](Control& c) { c.slot = 1024; }));
  EXPECT_FALSE(with([](Control& c) { c.sender_slot = 1024; }));
}

TEST(Control, FlippedBitsDecodeOrAreDropped) {
  for (const ControlType type : {ControlType::kHello, ControlType::kAbort, ControlType::kAnswer}) {
    const std::string bytes = example(type).encode();
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
      if (const auto control = decode(flipped)) expect_valid(*control);
    }
  }
}

TEST(Control, RandomBytesDecodeOrAreDropped) {
  std::mt19937_64 random(3);
  const std::string valid = example(ControlType::kAbort).encode();
  int decoded = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string bytes = valid;
    if (random() % 4 == 0) bytes.resize(random() % (2 * valid.size()));
    if (i % 2 == 0) {
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else if (!bytes.empty()) {
      for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
    }
    if (const auto control = decode(bytes)) {
      ++decoded;
      expect_valid(*control);
    }
  }
  EXPECT_GT(decoded, 1000) << "the inputs reach the fields behind the checks";
}

}  // namespace
}  // namespace q7x2
