// Encodes bit masks as bytes, and decodes them.
#include "kernels/codec/sparse_indices.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/codec/sparse_kernels.h"

namespace q7x2 {
namespace {

constexpr size_t kOneByte = 240;    // smaller gaps take one byte
constexpr size_t kTwoBytes = 4080;  // smaller gaps take two bytes
static_assert(kTwoBytes == kOneByte + (255 - kOneByte) * 256);
static_assert(kLargestGap == kTwoBytes + (size_t{1} << 24) - 1);

std::byte byte_of(size_t value) {
  return static_cast<std::byte>(value & 0xFF);
}

/// Returns the end of the bytes that it wrote.
std::byte* put_gap(size_t gap, std::byte* out) {
  if (gap < kOneByte) {
    *out++ = byte_of(gap);
  } else if (gap < kTwoBytes) {
    *out++ = byte_of(kOneByte + ((gap - kOneByte) >> 8));
    *out++ = byte_of(gap - kOneByte);
  } else {
    const size_t rest = gap - kTwoBytes;
    *out++ = std::byte{255};
    *out++ = byte_of(rest);
    *out++ = byte_of(rest >> 8);
    *out++ = byte_of(rest >> 16);
  }
  return out;
}

}  // namespace

size_t encode_deltas(const uint64_t* mask, size_t positions, size_t limit, std::byte* out) {
  const std::byte* const begin = out;
  size_t next = 0;
  for (size_t word = 0; word < mask_words(positions); ++word) {
    for (uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const size_t at = word * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (at - next > kLargestGap) return limit;
      out = put_gap(at - next, out);
      if (static_cast<size_t>(out - begin) >= limit) return limit;
      next = at + 1;
    }
  }
  return static_cast<size_t>(out - begin);
}

void encode_bitmap(const uint64_t* mask, size_t positions, std::byte* out) {
  std::memcpy(out, mask, bitmap_bytes(positions));
}

std::optional<size_t> decode_deltas(std::span<const std::byte> bytes, size_t positions,
                                    uint64_t* mask) {
  std::fill_n(mask, mask_words(positions), uint64_t{0});
  size_t set = 0;
  size_t next = 0;
  const auto byte = [&](size_t at) { return std::to_integer<size_t>(bytes[at]); };
  for (size_t at = 0; at < bytes.size(); ++set) {
    size_t gap = byte(at);
    const size_t length = gap < kOneByte ? 1 : gap < 255 ? 2 : 4;
    if (bytes.size() - at < length) return std::nullopt;
    if (length == 2) gap = kOneByte + ((gap - kOneByte) << 8) + byte(at + 1);
    if (length == 4) gap = kTwoBytes + byte(at + 1) + (byte(at + 2) << 8) + (byte(at + 3) << 16);
    at += length;
    next += gap;
    if (next >= positions) return std::nullopt;
    mask[next / 64] |= uint64_t{1} << (next % 64);
    ++next;
  }
  return set;
}

std::optional<size_t> decode_bitmap(std::span<const std::byte> bytes, size_t positions,
                                    uint64_t* mask) {
  if (bytes.size() != bitmap_bytes(positions)) return std::nullopt;
  if (positions == 0) return 0;
  const size_t words = mask_words(positions);
  mask[words - 1] = 0;
  std::memcpy(mask, bytes.data(), bytes.size());
  if (positions % 64 != 0 && mask[words - 1] >> (positions % 64) != 0) return std::nullopt;
  size_t set = 0;
  for (size_t word = 0; word < words; ++word) set += static_cast<size_t>(std::popcount(mask[word]));
  return set;
}

}  // namespace q7x2
