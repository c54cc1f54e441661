// The 64-bit tag that matches a message with its receive.
//
//   collective  | 01 | slot:10 | source:13 | sequence:13 | slice:4 | message:12 | fingerprint:10 |
//   point to pt | 10 | slot:10 | source:13 | 0:7         | user tag:32                          |
//   control     | 11 | slot:10 | source:13 | 0:7         | sequence:32                          |
//
// `slot` is the group's number *at the receiver*: each process numbers its own groups and publishes
// the number in its peer info, so no agreement is needed. A slot belongs to one incarnation of a
// group. Slots are assigned round robin, so the slot is the epoch too: a late packet of an aborted
// group finds no receive. `source` is the sender's rank in the group. The fingerprint is a hash of
// the call (op, dtype, count, root, reduction, algorithm). It is not part of the match, but is
// compared afterwards: ranks that disagree about a call get an error instead of waiting for each
// other.
//
// Bits of the source that a group's ranks do not need belong to the fingerprint too: it has 22 bits
// between two ranks, 17 among 64, and 13 among 1,024. Each message carries another part of the
// hash, so that a call of seven messages compares all of it.
//
// Between ranks that share memory, the mailbox identifies the group and the sender. So a
// collective's tag has 35 bits of the fingerprint:
//
//   fingerprint:25 | sequence:13 | slice:4 | message:12 | fingerprint:10
#pragma once

#include <bit>
#include <cstdint>

namespace q7x2::tag {

inline constexpr int kSlotBits = 10;
inline constexpr int kSourceBits = 13;
inline constexpr int kSequenceBits = 13;
inline constexpr int kSliceBits = 4;
inline constexpr int kMessageBits = 12;
inline constexpr int kFingerprintBits = 10;

inline constexpr int kMaxGroups = 1 << kSlotBits;
inline constexpr int kMaxRanks = 1 << kSourceBits;
inline constexpr int kMaxMessages = 1 << kMessageBits;
inline constexpr int kSliceCycle = 1 << kSliceBits;
inline constexpr uint64_t kSequenceCycle = uint64_t{1} << kSequenceBits;

inline constexpr uint64_t kExact = ~uint64_t{0};
inline constexpr int kSourceShift = 39;
inline constexpr int kSlotShift = kSourceShift + kSourceBits;
inline constexpr int kSliceShift = kFingerprintBits + kMessageBits;
inline constexpr int kSequenceShift = kSliceShift + kSliceBits;
static_assert(kSequenceShift + kSequenceBits == kSourceShift && kSlotShift + kSlotBits == 62);
inline constexpr uint64_t kSourceMask = ((uint64_t{1} << kSourceBits) - 1) << kSourceShift;
/// Matches a point-to-point message from any source.
inline constexpr uint64_t kAnySourceMask = ~kSourceMask;
/// Matches everything that is addressed to one slot.
inline constexpr uint64_t kSlotMask = ((uint64_t{1} << kSlotBits) - 1) << kSlotShift;

/// The bits of a collective's tag that belong to the fingerprint; the other bits match its message.
inline constexpr uint64_t fingerprint_mask(int world_size) {
  const uint64_t low = (uint64_t{1} << kFingerprintBits) - 1;
  const uint64_t sources = std::bit_ceil(static_cast<uint64_t>(world_size)) - 1;
  return low | (kSourceMask & ~(sources << kSourceShift));
}

/// The same for a tag in shared memory.
inline constexpr uint64_t kSharedFingerprintMask =
    ((uint64_t{1} << kFingerprintBits) - 1) | ~((uint64_t{1} << kSourceShift) - 1);

/// The fingerprint rotated as message number `message` of a call carries it.
inline constexpr uint64_t turned(uint64_t fingerprint, int message) {
  return std::rotr(fingerprint, message * kFingerprintBits % 64);
}

/// Matches all messages of one collective of a group.
inline constexpr uint64_t kSequenceMask = ((uint64_t{1} << kSequenceBits) - 1) << kSequenceShift;

inline constexpr uint64_t kKindMask = uint64_t{3} << 62;

enum class Kind : uint64_t { kCollective = 1, kPointToPoint = 2, kControl = 3 };

inline constexpr uint64_t base(Kind kind, int slot, int source) {
  return static_cast<uint64_t>(kind) << 62 | static_cast<uint64_t>(slot) << kSlotShift |
         static_cast<uint64_t>(source) << kSourceShift;
}

/// The tag of a message in a group of `world_size` ranks.
inline constexpr uint64_t collective(int slot, int source, uint64_t sequence, uint64_t slice,
                                     uint64_t message, uint64_t fingerprint, int world_size) {
  return base(Kind::kCollective, slot, source) | (sequence % kSequenceCycle) << kSequenceShift |
         (slice % kSliceCycle) << kSliceShift | message << kFingerprintBits |
         (fingerprint & fingerprint_mask(world_size));
}

inline constexpr uint64_t shared_collective(uint64_t sequence, uint64_t slice, uint64_t message,
                                            uint64_t fingerprint) {
  return (collective(0, 0, sequence, slice, message, 0, 1) & ~kSharedFingerprintMask) |
         (fingerprint & kSharedFingerprintMask);
}

inline constexpr uint64_t point_to_point(int slot, int source, uint32_t user_tag) {
  return base(Kind::kPointToPoint, slot, source) | user_tag;
}

inline constexpr uint64_t control(int slot, int source, uint32_t sequence) {
  return base(Kind::kControl, slot, source) | sequence;
}

inline constexpr uint64_t slot_bits(int slot) {
  return static_cast<uint64_t>(slot) << kSlotShift;
}
inline constexpr int slot_of(uint64_t tag) {
  return static_cast<int>((tag & kSlotMask) >> kSlotShift);
}
/// In a group of `world_size` ranks. A forged message may name a rank that does not exist.
inline constexpr int source_of(uint64_t tag, int world_size) {
  const bool has_fingerprint = (tag & kKindMask) == base(Kind::kCollective, 0, 0);
  const uint64_t mask = has_fingerprint ? kSourceMask & ~fingerprint_mask(world_size) : kSourceMask;
  return static_cast<int>((tag & mask) >> kSourceShift);
}
inline constexpr uint64_t sequence_of(uint64_t tag) {
  return (tag >> kSequenceShift) % kSequenceCycle;
}
/// The number of the collective that a message with this tag belongs to: of all numbers with its
/// sequence, the one nearest to `number`.
inline constexpr uint64_t number_near(uint64_t number, uint64_t tag) {
  const uint64_t ahead = (sequence_of(tag) - number) % kSequenceCycle;
  return number + ahead - (ahead < kSequenceCycle / 2 ? 0 : kSequenceCycle);
}

}  // namespace q7x2::tag
