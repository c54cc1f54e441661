// The 64-bit tag that matches a message with its receive.
//
//   collective  | 01 | slot:10 | source:13 | sequence:13 | slice:4 | message:12 | fingerprint:10 |
//   point to pt | 10 | slot:10 | source:13 | 0:7         | user tag:32                          |
//   control     | 11 | slot:10 | source:13 | 0:7         | sequence:32                          |
//
// `slot` names the group *at the receiver*: each process numbers its own groups and tells the
// number in its card, so no agreement is needed. A slot belongs to one incarnation of a group and
// is given out round robin, which makes it the epoch too: a late packet of an aborted group finds
// no receive. `source` is the sender's rank in the group. The fingerprint, a hash of the call (op,
// dtype, count, root, reduction, algorithm), is left out of the match and compared afterwards:
// ranks that disagree about a call meet and get an error, instead of waiting for each other.
//
// Between ranks that share memory, the mailbox tells the group and the sender. There a collective's
// tag has 35 bits of the fingerprint:
//
//   fingerprint:25 | sequence:13 | slice:4 | message:12 | fingerprint:10
#pragma once

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

inline constexpr uint64_t kFingerprintMask = (uint64_t{1} << kFingerprintBits) - 1;
inline constexpr uint64_t kExact = ~uint64_t{0};
/// Matches a collective's message whatever its fingerprint.
inline constexpr uint64_t kCollectiveMask = ~kFingerprintMask;
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

/// Matches a collective's message in shared memory, whatever its fingerprint.
inline constexpr uint64_t kSharedMask = ((uint64_t{1} << kSourceShift) - 1) & ~kFingerprintMask;
inline constexpr uint64_t kSharedFingerprintMask = ~kSharedMask;

inline constexpr uint64_t kKindMask = uint64_t{3} << 62;

enum class Kind : uint64_t { kCollective = 1, kPointToPoint = 2, kControl = 3 };

inline constexpr uint64_t base(Kind kind, int slot, int source) {
  return static_cast<uint64_t>(kind) << 62 | static_cast<uint64_t>(slot) << kSlotShift |
         static_cast<uint64_t>(source) << kSourceShift;
}

inline constexpr uint64_t collective(int slot, int source, uint64_t sequence, uint64_t slice,
                                     uint64_t message, uint64_t fingerprint) {
  return base(Kind::kCollective, slot, source) | (sequence % kSequenceCycle) << kSequenceShift |
         (slice % kSliceCycle) << kSliceShift | message << kFingerprintBits |
         (fingerprint & kFingerprintMask);
}

inline constexpr uint64_t shared_collective(uint64_t sequence, uint64_t slice, uint64_t message,
                                            uint64_t fingerprint) {
  return (collective(0, 0, sequence, slice, message, 0) & kSharedMask) |
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
inline constexpr int source_of(uint64_t tag) {
  return static_cast<int>((tag & kSourceMask) >> kSourceShift);
}
inline constexpr uint64_t sequence_of(uint64_t tag) {
  return (tag >> kSequenceShift) % kSequenceCycle;
}

}  // namespace q7x2::tag
