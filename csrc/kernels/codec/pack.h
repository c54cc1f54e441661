// Packs codes of 1 to 8 bits: a group of `count` codes, a multiple of 8, takes count * bits / 8
// bytes.
//
// Codes are split into planes of 4, 2 and 1 bits: 3 bits are a plane of the lower two and one of
// the highest, 6 bits one of the lower four and one of the upper two. A byte of a plane of 4 bits
// holds codes j and j + count / 2, one of 2 bits codes j, j + count / 4 and so on, the first in the
// lowest bits. So neighbours stay neighbours, and both directions are loops that a compiler
// vectorises.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/elements.h"

namespace q7x2 {

template <int kBits>
Q7X2_ELEMENT void pack_plane(const uint8_t* codes, int shift, size_t count, uint8_t* plane) {
  constexpr int kCodes = 8 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const size_t stride = count / kCodes;
  for (size_t j = 0; j < stride; ++j) {
    uint32_t byte = 0;
    for (int k = 0; k < kCodes; ++k) {
      const uint32_t code = codes[j + static_cast<size_t>(k) * stride];
      byte |= ((code >> shift) & kMask) << (k * kBits);
    }
    plane[j] = static_cast<uint8_t>(byte);
  }
}

/// `kOver`: combines with the lower bits that an earlier plane left in `codes`.
template <int kBits, bool kOver>
Q7X2_ELEMENT void unpack_plane(const uint8_t* plane, int shift, size_t count, uint8_t* codes) {
  constexpr int kCodes = 8 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const size_t stride = count / kCodes;
  for (int k = 0; k < kCodes; ++k) {
    uint8_t* out = codes + static_cast<size_t>(k) * stride;
    for (size_t j = 0; j < stride; ++j) {
      const auto code =
          static_cast<uint8_t>(((static_cast<uint32_t>(plane[j]) >> (k * kBits)) & kMask) << shift);
      out[j] = kOver ? static_cast<uint8_t>(out[j] | code) : code;
    }
  }
}

Q7X2_ELEMENT void pack(const uint8_t* codes, int bits, size_t count, uint8_t* packed) {
  switch (bits) {
    case 8:
      return pack_plane<8>(codes, 0, count, packed);
    case 6:
      pack_plane<4>(codes, 0, count, packed);
      return pack_plane<2>(codes, 4, count, packed + count / 2);
    case 4:
      return pack_plane<4>(codes, 0, count, packed);
    case 3:
      pack_plane<2>(codes, 0, count, packed);
      return pack_plane<1>(codes, 2, count, packed + count / 4);
    case 2:
      return pack_plane<2>(codes, 0, count, packed);
    default:
      return pack_plane<1>(codes, 0, count, packed);
  }
}

Q7X2_ELEMENT void unpack(const uint8_t* packed, int bits, size_t count, uint8_t* codes) {
  switch (bits) {
    case 8:
      return unpack_plane<8, false>(packed, 0, count, codes);
    case 6:
      unpack_plane<4, false>(packed, 0, count, codes);
      return unpack_plane<2, true>(packed + count / 2, 4, count, codes);
    case 4:
      return unpack_plane<4, false>(packed, 0, count, codes);
    case 3:
      unpack_plane<2, false>(packed, 0, count, codes);
      return unpack_plane<1, true>(packed + count / 4, 2, count, codes);
    case 2:
      return unpack_plane<2, false>(packed, 0, count, codes);
    default:
      return unpack_plane<1, false>(packed, 0, count, codes);
  }
}

// A byte or a word at a time, for processors on which each thread computes one.

/// Byte `index` of packed codes.
Q7X2_ELEMENT uint8_t packed_byte(const uint8_t* codes, int bits, unsigned count, unsigned index) {
  int shift = 0;
  for (int width = 8; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    const unsigned stride = count * static_cast<unsigned>(width) / 8;
    if (index < stride) {
      uint32_t byte = 0;
      for (int k = 0; k < 8 / width; ++k) {
        const uint32_t code = codes[index + static_cast<unsigned>(k) * stride];
        byte |= ((code >> shift) & ((1u << width) - 1)) << (k * width);
      }
      return static_cast<uint8_t>(byte);
    }
    index -= stride;
    shift += width;
  }
  return 0;
}

/// A word in which each byte has these lowest bits set.
Q7X2_ELEMENT uint32_t low_bits_of_bytes(int width) {
  return ((1u << width) - 1) * 0x01010101u;
}

/// Bytes 4 * index ... 4 * index + 3, the first one lowest. `codes` are read as words, and `count`
/// is a multiple of 32.
Q7X2_ELEMENT uint32_t packed_word(const uint32_t* codes, int bits, unsigned count, unsigned index) {
  int shift = 0;
  for (int width = 8; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    const unsigned stride = count * static_cast<unsigned>(width) / 32;
    if (index < stride) {
      uint32_t word = 0;
      for (int k = 0; k < 8 / width; ++k) {
        const uint32_t four = codes[index + static_cast<unsigned>(k) * stride];
        word |= ((four >> shift) & low_bits_of_bytes(width)) << (k * width);
      }
      return word;
    }
    index -= stride;
    shift += width;
  }
  return 0;
}

/// Code `index` of packed codes.
Q7X2_ELEMENT uint8_t unpacked_code(const uint8_t* packed, int bits, unsigned count,
                                   unsigned index) {
  uint32_t code = 0;
  int shift = 0;
  for (int width = 8; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    const unsigned stride = count * static_cast<unsigned>(width) / 8;
    const unsigned place = index / stride;
    const uint32_t byte = packed[index - place * stride];
    code |= ((byte >> (place * static_cast<unsigned>(width))) & ((1u << width) - 1)) << shift;
    packed += stride;
    shift += width;
  }
  return static_cast<uint8_t>(code);
}

/// The same for 2^log2_count codes, without a division.
Q7X2_ELEMENT uint8_t unpacked_code_of_power(const uint8_t* packed, int bits, int log2_count,
                                            unsigned index) {
  uint32_t code = 0;
  int shift = 0;
  for (int log2_width = 3; log2_width >= 0; --log2_width) {
    const int width = 1 << log2_width;
    if ((bits & width) == 0) continue;
    const int log2_stride = log2_count + log2_width - 3;
    const uint32_t byte = packed[index & ((1u << log2_stride) - 1)];
    code |= ((byte >> ((index >> log2_stride) << log2_width)) & ((1u << width) - 1)) << shift;
    packed += size_t{1} << log2_stride;
    shift += width;
  }
  return static_cast<uint8_t>(code);
}

/// Codes 4 * index ... 4 * index + 3 of 2^log2_count (at least 32), the first one in the lowest
/// byte. `word(n)` is word n of the packed codes.
template <class Word>
Q7X2_ELEMENT uint32_t unpacked_codes_of_power(Word word, int bits, int log2_count, unsigned index) {
  uint32_t codes = 0;
  unsigned plane = 0;
  int shift = 0;
  for (int log2_width = 3; log2_width >= 0; --log2_width) {
    const int width = 1 << log2_width;
    if ((bits & width) == 0) continue;
    const int log2_stride = log2_count + log2_width - 5;  // in words
    const uint32_t four = word(plane + (index & ((1u << log2_stride) - 1)));
    const unsigned place = (index >> log2_stride) << log2_width;
    codes |= ((four >> place) & low_bits_of_bytes(width)) << shift;
    plane += 1u << log2_stride;
    shift += width;
  }
  return codes;
}

}  // namespace q7x2
