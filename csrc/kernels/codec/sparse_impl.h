// The select stage's loops, compiled once per instruction set.
//
// A sparse_<isa>.cpp defines Q7X2_SPARSE_KERNELS and Q7X2_ISA_NAME and includes this file.
// Everything here has internal linkage, and uses only types of the standard library; see
// reduce_impl.h.
//
// The test of an element is written once and gives a byte. Only three operations use intrinsics:
// converting 64 bytes to 64 bits, compaction and expansion.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/random.h"
#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/independent.h"
#include "kernels/cpu/vector_width.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace q7x2 {
namespace {

constexpr size_t kWord = 64;

struct Flags {
  alignas(64) uint8_t bytes[kWord];  // each 0 or 1
};

uint64_t bits_of(const Flags& flags) {
#if defined(__AVX512BW__)
  const __m512i bytes = _mm512_load_si512(flags.bytes);
  return _mm512_test_epi8_mask(bytes, bytes);
#elif defined(__AVX2__)
  const auto half = [&](size_t at) {
    const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(flags.bytes + at));
    const __m256i set = _mm256_cmpgt_epi8(bytes, _mm256_setzero_si256());
    return static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(set)));
  };
  return half(0) | half(32) << 32;
#else
  uint64_t word = 0;
  for (size_t i = 0; i < kWord / 8; ++i) {
    uint64_t bytes;
    __builtin_memcpy(&bytes, flags.bytes + i * 8, sizeof(bytes));
    word |= (bytes * 0x0102040810204080 >> 56) << (i * 8);
  }
  return word;
#endif
}

size_t count_of(uint64_t word) {
  return static_cast<size_t>(__builtin_popcountll(word));
}

size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

void sum(const float* values, const float* add, float scale, size_t count, float* out) {
  if (add != nullptr) {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) out[i] = (values[i] + add[i]) * scale;
  } else {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) out[i] = values[i] * scale;
  }
}

/// Fills `mask` from `is_sent(i)`, a word at a time.
template <class IsSent>
size_t fill(size_t count, uint64_t* mask, const IsSent& is_sent) {
  size_t sent = 0;
  for (size_t begin = 0; begin < count; begin += kWord) {
    Flags flags;
    if (count - begin >= kWord) {
      for (size_t i = 0; i < kWord; ++i) flags.bytes[i] = is_sent(begin + i) ? 1 : 0;
    } else {
      for (size_t i = 0; i < kWord; ++i) {
        flags.bytes[i] = begin + i < count && is_sent(begin + i) ? 1 : 0;
      }
    }
    const uint64_t word = bits_of(flags);
    mask[begin / kWord] = word;
    sent += count_of(word);
  }
  return sent;
}

size_t mark(const float* values, size_t count, uint32_t least, size_t ties, uint64_t* mask) {
  const size_t tied_words = smaller(ties, count) / kWord;
  const size_t tied = tied_words * kWord;
  size_t sent = fill(tied, mask,
                     [&](size_t i) { return is_selected(magnitude_bits(values[i]), least, true); });
  if (tied == count) return sent;
  // The word that contains the last equal magnitude.
  const size_t next = smaller(count - tied, kWord);
  sent += fill(next, mask + tied_words, [&](size_t i) {
    return is_selected(magnitude_bits(values[tied + i]), least, tied + i < ties);
  });
  const float* rest = values + tied + next;
  return sent + fill(count - tied - next, mask + tied_words + 1,
                     [&](size_t i) { return is_selected(magnitude_bits(rest[i]), least, false); });
}

size_t mark_random(uint64_t key, uint64_t first, size_t count, uint64_t limit, uint64_t* mask) {
  const auto most = static_cast<uint32_t>(limit - 1);
  const uint64_t until_next_stream = (uint64_t{1} << 32) - (first & 0xFFFFFFFF);
  const RandomStream stream = random_stream(key, first);
  const RandomStream next = random_stream(key, first + until_next_stream);
  const auto counter = static_cast<uint32_t>(first);
  if (count <= until_next_stream) {
    return fill(count, mask, [&](size_t i) {
      return random_bits(stream, counter + static_cast<uint32_t>(i)) <= most;
    });
  }
  return fill(count, mask, [&](size_t i) {
    return random_bits(i < until_next_stream ? stream : next, counter + static_cast<uint32_t>(i)) <=
           most;
  });
}

/// Sets `count` bits from element `begin` on, a word at a time.
void put_flags(const Flags* flags, size_t begin, size_t count, uint64_t* mask) {
  const size_t shift = begin % kWord;
  for (size_t i = 0; i * kWord < count; ++i) {
    const uint64_t word = bits_of(flags[i]);
    uint64_t* const at = mask + begin / kWord + i;
    at[0] |= word << shift;
    if (shift > 0 && word >> (kWord - shift) != 0) at[1] |= word >> (kWord - shift);
  }
}

/// A single group, of any size up to 32.
void mark_group(const float* values, size_t begin, size_t size, int n, uint64_t* mask) {
  uint32_t magnitudes[32];
  Flags flags = {};
  for (size_t i = 0; i < size; ++i) magnitudes[i] = magnitude_bits(values[begin + i]);
  for (size_t i = 0; i < size; ++i) {
    const auto index = static_cast<int>(i);
    flags.bytes[i] = is_among_largest(magnitudes, static_cast<int>(size), index, n) ? 1 : 0;
  }
  put_flags(&flags, begin, size, mask);
}

/// Like `mark_group` for kWidth groups of `kSize`, each in its own lane.
template <size_t kSize>
void mark_groups(const float* values, size_t begin, int n, uint64_t* mask) {
  // Magnitudes have the same order as signed integers, and comparisons give 0 or -1.
  using Lanes = int32_t __attribute__((vector_size(kWidth * sizeof(int32_t))));
  Lanes magnitudes[kSize];
  for (size_t group = 0; group < kWidth; ++group) {
    for (size_t i = 0; i < kSize; ++i) {
      magnitudes[i][group] =
          static_cast<int32_t>(magnitude_bits(values[begin + group * kSize + i]));
    }
  }
  constexpr size_t kElements = kSize * kWidth;
  Flags flags[(kElements + kWord - 1) / kWord] = {};
  auto* const bytes = reinterpret_cast<uint8_t*>(flags);
  for (size_t i = 0; i < kSize; ++i) {
    const Lanes own = magnitudes[i];
    Lanes larger = {};
    for (size_t j = 0; j < i; ++j) larger -= magnitudes[j] >= own;
    for (size_t j = i + 1; j < kSize; ++j) larger -= magnitudes[j] > own;
    const Lanes sent = ((larger < n) & (own > 0)) | (own >= static_cast<int32_t>(kInfinityBits));
    for (size_t group = 0; group < kWidth; ++group) {
      bytes[group * kSize + i] = static_cast<uint8_t>(sent[group] & 1);
    }
  }
  put_flags(flags, begin, kElements, mask);
}

size_t mark_largest(const float* values, size_t count, size_t head, int n, int m, uint64_t* mask) {
  for (size_t word = 0; word < mask_words(count); ++word) mask[word] = 0;
  const auto size = static_cast<size_t>(m);
  size_t begin = smaller(head, count);
  mark_group(values, 0, begin, n, mask);
  for (; count - begin >= kWidth * size; begin += kWidth * size) {
    switch (m) {
      case 2:
        mark_groups<2>(values, begin, n, mask);
        break;
      case 4:
        mark_groups<4>(values, begin, n, mask);
        break;
      case 8:
        mark_groups<8>(values, begin, n, mask);
        break;
      case 16:
        mark_groups<16>(values, begin, n, mask);
        break;
      default:
        mark_groups<32>(values, begin, n, mask);
    }
  }
  for (; begin < count; begin += size) {
    mark_group(values, begin, smaller(size, count - begin), n, mask);
  }
  size_t sent = 0;
  for (size_t word = 0; word < mask_words(count); ++word) sent += count_of(mask[word]);
  return sent;
}

float norm(const float* values, size_t count) {
  double lanes[kLanes] = {};
  const size_t whole = count - count % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const double value = values[i + j];
      lanes[j] += value * value;
    }
  }
  for (size_t j = 0; j < count - whole; ++j) {
    const double value = values[whole + j];
    lanes[j] += value * value;
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return static_cast<float>(__builtin_sqrt(lanes[0]));
}

// Words with few bits are processed bit by bit. AVX-512 processes the others 16 elements at a time.
#if defined(__AVX512F__)
constexpr size_t kFewBits = 6;
#else
constexpr size_t kFewBits = kWord;
#endif

#if defined(__AVX512F__)
__mmask16 first_lanes(size_t count) {
  return static_cast<__mmask16>((1u << count) - 1);
}

/// Stores a whole vector if `room` allows. That, and a compaction in a register, is far faster than
/// a compacting store.
size_t compact_lanes(const float* values, __mmask16 lanes, float* out, size_t room) {
  const __m512 some = _mm512_maskz_compress_ps(lanes, _mm512_maskz_loadu_ps(lanes, values));
  const size_t selected = count_of(lanes);
  _mm512_mask_storeu_ps(out, room >= 16 ? __mmask16{0xFFFF} : first_lanes(selected), some);
  return selected;
}

/// Stores sixteen elements of an aligned result, bypassing the caches.
size_t stream_lanes(const float* values, __mmask16 lanes, float* out) {
  const size_t selected = count_of(lanes);
  const __m512 packed = _mm512_maskz_loadu_ps(first_lanes(selected), values);
  _mm512_stream_ps(out, _mm512_maskz_expand_ps(lanes, packed));
  return selected;
}

size_t expand_lanes(const float* values, __mmask16 lanes, Expand how, float* out, size_t room) {
  const size_t selected = count_of(lanes);
  const __m512 packed = _mm512_maskz_loadu_ps(first_lanes(selected), values);
  const __m512 some = _mm512_maskz_expand_ps(lanes, packed);
  if (how == Expand::kAdd) {
    const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out), some);
    _mm512_mask_storeu_ps(out, lanes, sum);
  } else {
    const __mmask16 inside = first_lanes(smaller(room, 16));
    _mm512_mask_storeu_ps(out, how == Expand::kSet ? inside : lanes, some);
  }
  return selected;
}
#endif

size_t compact(const float* values, const uint64_t* mask, size_t count, float* out) {
  size_t kept = 0;
  for (size_t at = 0; at < count; at += kWord) {
    uint64_t word = mask[at / kWord];
    if (count_of(word) <= kFewBits) {
      for (; word != 0; word &= word - 1) {
        out[kept++] = values[at + static_cast<size_t>(__builtin_ctzll(word))];
      }
      continue;
    }
#if defined(__AVX512F__)
    for (size_t i = at; word != 0; i += 16, word >>= 16) {
      kept += compact_lanes(values + i, static_cast<__mmask16>(word), out + kept, count - kept);
    }
#endif
  }
  return kept;
}

size_t expand_cached(const float* values, const uint64_t* mask, size_t count, Expand how,
                     float* out) {
  size_t used = 0;
  for (size_t at = 0; at < count; at += kWord) {
    uint64_t word = mask[at / kWord];
    const size_t end = smaller(at + kWord, count);
    if (count_of(word) <= kFewBits) {
      for (size_t i = at; i < end && how == Expand::kSet; ++i) out[i] = 0;
      for (; word != 0; word &= word - 1) {
        float& element = out[at + static_cast<size_t>(__builtin_ctzll(word))];
        element = how == Expand::kAdd ? element + values[used] : values[used];
        ++used;
      }
      continue;
    }
#if defined(__AVX512F__)
    for (size_t i = at; i < end; i += 16, word >>= 16) {
      used += expand_lanes(values + used, static_cast<__mmask16>(word), how, out + i, end - i);
    }
#endif
  }
  return used;
}

#if defined(__AVX512F__) || defined(__AVX2__)
constexpr size_t kCacheLine = 64;

/// Stores whole words of a result that begins at a cache line; returns the number of values used.
size_t stream_words(const float* values, const uint64_t* mask, size_t words, float* out) {
  size_t used = 0;
  for (size_t i = 0; i < words; ++i, out += kWord) {
    uint64_t word = mask[i];
#if defined(__AVX512F__)
    for (size_t at = 0; at < kWord; at += 16, word >>= 16) {
      used += stream_lanes(values + used, static_cast<__mmask16>(word), out + at);
    }
#else
    alignas(kCacheLine) float tile[kWord] = {};
    for (; word != 0; word &= word - 1) tile[__builtin_ctzll(word)] = values[used++];
    for (size_t at = 0; at < kWord; at += kWidth) {
      _mm256_stream_ps(out + at, _mm256_load_ps(tile + at));
    }
#endif
  }
  _mm_sfence();  // before other threads learn that the result is complete
  return used;
}
#endif

size_t expand(const float* values, const uint64_t* mask, size_t count, Expand how, float* out) {
  size_t streamed = 0;
  size_t used = 0;
#if defined(__AVX512F__) || defined(__AVX2__)
  if (how == Expand::kStream && reinterpret_cast<uintptr_t>(out) % kCacheLine == 0) {
    streamed = count / kWord;
    used = stream_words(values, mask, streamed, out);
  }
#endif
  if (how == Expand::kStream) how = Expand::kSet;
  return used + expand_cached(values + used, mask + streamed, count - streamed * kWord, how,
                              out + streamed * kWord);
}

#if defined(__AVX512F__)
uint64_t large_ones(const float* values, uint32_t least) {
  const __m512i sign = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i bound = _mm512_set1_epi32(static_cast<int32_t>(least));
  const auto sixteen = [&](size_t at) {
    const __m512i magnitudes = _mm512_and_si512(_mm512_loadu_si512(values + at), sign);
    return static_cast<uint64_t>(_mm512_cmpge_epu32_mask(magnitudes, bound));
  };
  return sixteen(0) | sixteen(16) << 16 | sixteen(32) << 32 | sixteen(48) << 48;
}
#else
uint64_t large_ones(const float* values, uint32_t least) {
  Flags flags;
  for (size_t i = 0; i < kWord; ++i) {
    flags.bytes[i] = is_selected(magnitude_bits(values[i]), least, true) ? 1 : 0;
  }
  return bits_of(flags);
}
#endif

size_t sift(const float* values, size_t count, uint32_t least, uint64_t* mask, float* out) {
  size_t kept = 0;
  const size_t whole = count / kWord * kWord;
  for (size_t begin = 0; begin < whole; begin += kWord) {
    const uint64_t word = large_ones(values + begin, least);
    mask[begin / kWord] = word;
    if (word != 0) kept += compact(values + begin, &word, kWord, out + kept);
  }
  if (whole < count) {
    const size_t rest = count - whole;
    mark(values + whole, rest, least, rest, mask + whole / kWord);
    kept += compact(values + whole, mask + whole / kWord, rest, out + kept);
  }
  return kept;
}

}  // namespace

extern const SparseKernels Q7X2_SPARSE_KERNELS = {Q7X2_ISA_NAME, sum,  mark,    sift,  mark_random,
                                                  mark_largest,  norm, compact, expand};

}  // namespace q7x2
