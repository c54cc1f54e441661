// Indices of a selection in a message: a bit mask, or the gaps between its bits, whichever is
// shorter.
//
// bitmap  ceil(positions / 8) bytes: bit i % 8 of byte i / 8 belongs to position i
// deltas  for each bit the number of zeros since the previous one, as
//           0 ... 239        one byte
//           240 ... 4079     two bytes: 240 + (x >> 8), x & 255, with x = gap - 240 < 15 * 256
//           4080 ...         four bytes: 255, gap - 4080 in three, the lowest first
//
// At a ratio of 1 % random positions take 1.09 bytes each as gaps; the theoretical minimum is 1.01.
// At 0.1 % they take 1.8. From 1/8 on the bitmap is shorter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace q7x2 {

/// The largest gap that deltas can represent.
inline constexpr size_t kLargestGap = 4079 + (size_t{1} << 24);

inline size_t bitmap_bytes(size_t positions) {
  return (positions + 7) / 8;
}

/// Writes the gaps of `mask`'s bits. Returns their bytes, or `limit` if they would not be fewer.
/// `out` must have room for `limit` + 4 bytes.
size_t encode_deltas(const uint64_t* mask, size_t positions, size_t limit, std::byte* out);
void encode_bitmap(const uint64_t* mask, size_t positions, std::byte* out);

/// Sets the positions of `bytes` in `mask`. Returns their number, or nothing if they are not valid.
std::optional<size_t> decode_deltas(std::span<const std::byte> bytes, size_t positions,
                                    uint64_t* mask);
std::optional<size_t> decode_bitmap(std::span<const std::byte> bytes, size_t positions,
                                    uint64_t* mask);

}  // namespace q7x2
