// The layout of tags: every field has its own bits, and every mask covers what it says.
#include "transport/tag.h"

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};
constexpr int kMaxSlot = tag::kMaxGroups - 1;
constexpr int kMaxSource = tag::kMaxRanks - 1;

/// The bits that a tag has beyond those of its kind.
uint64_t beyond(uint64_t tag, tag::Kind kind) {
  EXPECT_EQ(tag & tag::kKindMask, static_cast<uint64_t>(kind) << 62);
  return tag & ~tag::kKindMask;
}

void expect_disjoint(const std::vector<uint64_t>& fields) {
  uint64_t taken = 0;
  for (const uint64_t field : fields) {
    EXPECT_NE(field, 0U);
    EXPECT_EQ(taken & field, 0U) << std::hex << taken << " and " << field;
    taken |= field;
  }
}

TEST(Tag, FieldsOfACollectiveDoNotOverlap) {
  const auto kind = tag::Kind::kCollective;
  const std::vector<uint64_t> fields = {
      beyond(tag::collective(kMaxSlot, 0, 0, 0, 0, 0), kind),
      beyond(tag::collective(0, kMaxSource, 0, 0, 0, 0), kind),
      beyond(tag::collective(0, 0, tag::kSequenceCycle - 1, 0, 0, 0), kind),
      beyond(tag::collective(0, 0, 0, tag::kSliceCycle - 1, 0, 0), kind),
      beyond(tag::collective(0, 0, 0, 0, tag::kMaxMessages - 1, 0), kind),
      beyond(tag::collective(0, 0, 0, 0, 0, kAll), kind),
  };
  expect_disjoint(fields);
  uint64_t all = 0;
  for (const uint64_t field : fields) all |= field;
  EXPECT_EQ(all, ~tag::kKindMask) << "no bit is left unused";
  const std::vector<int> widths = {tag::kSlotBits,  tag::kSourceBits,  tag::kSequenceBits,
                                   tag::kSliceBits, tag::kMessageBits, tag::kFingerprintBits};
  for (size_t i = 0; i < fields.size(); ++i) {
    EXPECT_EQ(std::popcount(fields[i]), widths[i]) << "field " << i;
  }
}

TEST(Tag, FieldsOfAMessageDoNotOverlap) {
  expect_disjoint({beyond(tag::point_to_point(kMaxSlot, 0, 0), tag::Kind::kPointToPoint),
                   beyond(tag::point_to_point(0, kMaxSource, 0), tag::Kind::kPointToPoint),
                   beyond(tag::point_to_point(0, 0, ~uint32_t{0}), tag::Kind::kPointToPoint)});
  expect_disjoint({beyond(tag::control(kMaxSlot, 0, 0), tag::Kind::kControl),
                   beyond(tag::control(0, kMaxSource, 0), tag::Kind::kControl),
                   beyond(tag::control(0, 0, ~uint32_t{0}), tag::Kind::kControl)});
}

TEST(Tag, RoundTrip) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const int slot = static_cast<int>(random() % tag::kMaxGroups);
    const int source = static_cast<int>(random() % tag::kMaxRanks);
    const uint64_t sequence = random();
    const uint64_t fingerprint = random();
    const uint64_t collective = tag::collective(slot, source, sequence, random(),
                                                random() % tag::kMaxMessages, fingerprint);
    EXPECT_EQ(tag::slot_of(collective), slot);
    EXPECT_EQ(tag::source_of(collective), source);
    EXPECT_EQ(tag::sequence_of(collective), sequence % tag::kSequenceCycle);
    EXPECT_EQ((collective ^ fingerprint) & tag::kFingerprintMask, 0U);

    const uint64_t slice = random();
    const uint64_t id = random() % tag::kMaxMessages;
    const uint64_t shared = tag::shared_collective(sequence, slice, id, fingerprint);
    EXPECT_EQ(shared & tag::kSharedMask,
              tag::collective(slot, source, sequence, slice, id, 0) & tag::kSharedMask);
    EXPECT_EQ(tag::sequence_of(shared), sequence % tag::kSequenceCycle);
    EXPECT_EQ((shared ^ fingerprint) & tag::kSharedFingerprintMask, 0U);

    const auto user_tag = static_cast<uint32_t>(random());
    const uint64_t message = tag::point_to_point(slot, source, user_tag);
    EXPECT_EQ(tag::slot_of(message), slot);
    EXPECT_EQ(tag::source_of(message), source);
    EXPECT_EQ(static_cast<uint32_t>(message), user_tag);
  }
}

TEST(Tag, MasksMatchWhatTheySay) {
  const auto matches = [](uint64_t a, uint64_t b, uint64_t mask) { return ((a ^ b) & mask) == 0; };
  const uint64_t call = tag::collective(3, 5, 7, 9, 11, 13);
  EXPECT_TRUE(matches(call, tag::collective(3, 5, 7, 9, 11, 14), tag::kCollectiveMask));
  EXPECT_FALSE(matches(call, tag::collective(3, 5, 7, 9, 11, 14), tag::kExact));
  for (const uint64_t other :
       {tag::collective(4, 5, 7, 9, 11, 13), tag::collective(3, 6, 7, 9, 11, 13),
        tag::collective(3, 5, 8, 9, 11, 13), tag::collective(3, 5, 7, 10, 11, 13),
        tag::collective(3, 5, 7, 9, 12, 13)}) {
    EXPECT_FALSE(matches(call, other, tag::kCollectiveMask));
  }

  const uint64_t message = tag::point_to_point(3, 5, 0xfffffff7);
  EXPECT_TRUE(
      matches(message, tag::point_to_point(3, kMaxSource, 0xfffffff7), tag::kAnySourceMask));
  EXPECT_FALSE(matches(message, tag::point_to_point(4, 5, 0xfffffff7), tag::kAnySourceMask));
  EXPECT_FALSE(matches(message, tag::point_to_point(3, 5, 0xfffffff6), tag::kAnySourceMask));

  for (const uint64_t mine : {call, message, tag::control(3, 1, 2)}) {
    EXPECT_TRUE(matches(mine, tag::slot_bits(3), tag::kSlotMask));
    EXPECT_FALSE(matches(mine, tag::slot_bits(2), tag::kSlotMask));
  }
}

TEST(Tag, KindsNeverMeet) {
  for (const uint64_t mask : {tag::kExact, tag::kCollectiveMask, tag::kAnySourceMask}) {
    EXPECT_NE(tag::collective(0, 0, 0, 0, 0, 0) & mask, tag::point_to_point(0, 0, 0) & mask);
    EXPECT_NE(tag::collective(0, 0, 0, 0, 0, 0) & mask, tag::control(0, 0, 0) & mask);
    EXPECT_NE(tag::point_to_point(0, 0, 0) & mask, tag::control(0, 0, 0) & mask);
  }
}

TEST(Tag, CyclesAreLongerThanWhatIsInProgressAtOnce) {
  EXPECT_EQ(tag::collective(0, 0, tag::kSequenceCycle, tag::kSliceCycle, 0, 0),
            tag::collective(0, 0, 0, 0, 0, 0));
  EXPECT_NE(tag::collective(0, 0, tag::kSequenceCycle - 1, 0, 0, 0),
            tag::collective(0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace q7x2
