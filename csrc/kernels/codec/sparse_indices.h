// Indices of a selection on the wire: a bit mask, or the gaps between its bits, whichever is less.
//
// bitmap  ceil(positions / 8) bytes: bit i % 8 of byte i / 8 belongs to position i
// deltas  for each bit the number of zeros since the one before, as
//           0 ... 239        one byte
//           240 ... 4079     two bytes: 240 + (x >> 8), x & 255, with x = gap - 240 < 15 * 256
//           4080 ...         four bytes: 255, gap - 4080 in three, the lowest first
//
// Of random positions one in a hundred takes 1.09 bytes as a gap, where 1.01 is the least that any
// code needs; one in a thousand takes 1.8. The bitmap is shorter from one in eight on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace q7x2 {

/// The largest gap that deltas can state.
inline constexpr size_t kLargestGap = 4079 + (size_t{1} << 24);

inline size_t bitmap_bytes(size_t positions) {
  return (positions + 7) / 8;
}

/// Writes the gaps of `mask`'s bits and returns their bytes, or `limit` where those are not fewer.
/// `out` has room for `limit` + 4 bytes.
size_t encode_deltas(const uint64_t* mask, size_t positions, size_t limit, std::byte* out);
void encode_bitmap(const uint64_t* mask, size_t positions, std::byte* out);

/// The number of positions that `bytes` set in `mask`, or nothing where they do not fit.
std::optional<size_t> decode_deltas(std::span<const std::byte> bytes, size_t positions,
                                    uint64_t* mask);
std::optional<size_t> decode_bitmap(std::span<const std::byte> bytes, size_t positions,
                                    uint64_t* mask);

}  // namespace q7x2
