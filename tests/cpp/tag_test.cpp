// The layout of tags: every field has its own bits, and every mask covers what it says.
#include "transport/ucx/tag.h"

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
constexpr uint64_t kLargeMask = tag::fingerprint_mask(tag::kMaxRanks);

/// In the largest of groups, where the fingerprint has its own field alone.
uint64_t large(int slot, int source, uint64_t sequence, uint64_t slice, uint64_t message,
               uint64_t fingerprint) {
  return tag::collective(slot, source, sequence, slice, message, fingerprint, tag::kMaxRanks);
}

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

TEST(Tag, TellsTheNearestNumber) {
  for (const uint64_t number : {uint64_t{0}, uint64_t{100}, 3 * tag::kSequenceCycle + 5}) {
    for (const uint64_t ahead : {uint64_t{0}, uint64_t{1}, tag::kSequenceCycle / 2 - 1}) {
      EXPECT_EQ(tag::number_near(number, large(1, 2, number + ahead, 0, 0, 0)), number + ahead);
      EXPECT_EQ(tag::number_near(number + ahead, large(1, 2, number, 0, 0, 0)), number);
    }
  }
}

TEST(Tag, FieldsOfACollectiveDoNotOverlap) {
  const auto kind = tag::Kind::kCollective;
  const std::vector<uint64_t> fields = {
      beyond(large(kMaxSlot, 0, 0, 0, 0, 0), kind),
      beyond(large(0, kMaxSource, 0, 0, 0, 0), kind),
      beyond(large(0, 0, tag::kSequenceCycle - 1, 0, 0, 0), kind),
      beyond(large(0, 0, 0, tag::kSliceCycle - 1, 0, 0), kind),
      beyond(large(0, 0, 0, 0, tag::kMaxMessages - 1, 0), kind),
      beyond(large(0, 0, 0, 0, 0, kAll), kind),
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
    const uint64_t collective =
        large(slot, source, sequence, random(), random() % tag::kMaxMessages, fingerprint);
    EXPECT_EQ(tag::slot_of(collective), slot);
    EXPECT_EQ(tag::source_of(collective, tag::kMaxRanks), source);
    EXPECT_EQ(tag::sequence_of(collective), sequence % tag::kSequenceCycle);
    EXPECT_EQ((collective ^ fingerprint) & kLargeMask, 0U);

    const uint64_t slice = random();
    const uint64_t id = random() % tag::kMaxMessages;
    const uint64_t shared = tag::shared_collective(sequence, slice, id, fingerprint);
    EXPECT_EQ(shared & ~tag::kSharedFingerprintMask,
              large(slot, source, sequence, slice, id, 0) & ~tag::kSharedFingerprintMask);
    EXPECT_EQ(tag::sequence_of(shared), sequence % tag::kSequenceCycle);
    EXPECT_EQ((shared ^ fingerprint) & tag::kSharedFingerprintMask, 0U);

    const auto user_tag = static_cast<uint32_t>(random());
    const uint64_t message = tag::point_to_point(slot, source, user_tag);
    EXPECT_EQ(tag::slot_of(message), slot);
    EXPECT_EQ(tag::source_of(message, 2), source);
    EXPECT_EQ(static_cast<uint32_t>(message), user_tag);
  }
}

TEST(Tag, MasksMatchWhatTheySay) {
  const auto matches = [](uint64_t a, uint64_t b, uint64_t mask) { return ((a ^ b) & mask) == 0; };
  const uint64_t call = large(3, 5, 7, 9, 11, 13);
  EXPECT_TRUE(matches(call, large(3, 5, 7, 9, 11, 14), ~kLargeMask));
  EXPECT_FALSE(matches(call, large(3, 5, 7, 9, 11, 14), tag::kExact));
  for (const uint64_t other :
       {large(4, 5, 7, 9, 11, 13), large(3, 6, 7, 9, 11, 13), large(3, 5, 8, 9, 11, 13),
        large(3, 5, 7, 10, 11, 13), large(3, 5, 7, 9, 12, 13)}) {
    EXPECT_FALSE(matches(call, other, ~kLargeMask));
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

TEST(Tag, TheFingerprintHasTheBitsThatSourcesDoNotNeed) {
  EXPECT_EQ(std::popcount(tag::fingerprint_mask(2)), 22);
  EXPECT_EQ(std::popcount(tag::fingerprint_mask(64)), 17);
  EXPECT_EQ(std::popcount(tag::fingerprint_mask(1024)), 13);
  EXPECT_EQ(std::popcount(kLargeMask), tag::kFingerprintBits);
  std::mt19937_64 random(2);
  for (const int world_size : {1, 2, 3, 64, 65, 1024, tag::kMaxRanks}) {
    const uint64_t mask = tag::fingerprint_mask(world_size);
    for (int i = 0; i < 100; ++i) {
      const int source = static_cast<int>(random() % static_cast<uint64_t>(world_size));
      const uint64_t fingerprint = random();
      const uint64_t call = tag::collective(7, source, 5, 3, 9, fingerprint, world_size);
      EXPECT_EQ(tag::source_of(call, world_size), source);
      EXPECT_EQ(tag::slot_of(call), 7);
      EXPECT_EQ(tag::sequence_of(call), 5U);
      EXPECT_EQ((call ^ fingerprint) & mask, 0U);
      EXPECT_EQ((call ^ tag::collective(7, source, 5, 3, 9, 0, world_size)) & ~mask, 0U);
    }
  }
}

TEST(Tag, TheMessagesOfACallShowTheWholeFingerprint) {
  uint64_t shown = 0;
  for (int message = 0; message < 7; ++message) {
    shown |= std::rotl(kLargeMask, message * tag::kFingerprintBits);
    EXPECT_EQ(tag::turned(1, message), std::rotr(uint64_t{1}, message * tag::kFingerprintBits));
  }
  EXPECT_EQ(shown, kAll);
}

TEST(Tag, KindsNeverMeet) {
  for (const uint64_t mask : {tag::kExact, ~kLargeMask, tag::kAnySourceMask}) {
    EXPECT_NE(large(0, 0, 0, 0, 0, 0) & mask, tag::point_to_point(0, 0, 0) & mask);
    EXPECT_NE(large(0, 0, 0, 0, 0, 0) & mask, tag::control(0, 0, 0) & mask);
    EXPECT_NE(tag::point_to_point(0, 0, 0) & mask, tag::control(0, 0, 0) & mask);
  }
}

TEST(Tag, CyclesAreLongerThanWhatIsInProgressAtOnce) {
  EXPECT_EQ(large(0, 0, tag::kSequenceCycle, tag::kSliceCycle, 0, 0), large(0, 0, 0, 0, 0, 0));
  EXPECT_NE(large(0, 0, tag::kSequenceCycle - 1, 0, 0, 0), large(0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace q7x2
