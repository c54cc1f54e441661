// The select stage's loops, compiled once for each instruction set.
//
// A sparse_<isa>.cpp defines Q7X2_SPARSE_KERNELS and Q7X2_ISA_NAME and includes this file. All here
// has internal linkage, and nothing comes from the standard library but types; see reduce_impl.h.
//
// What decides on an element is written once and gives a byte; only the step from 64 bytes to 64
// bits, compaction and expansion know instructions by name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/random.h"
#include "kernels/sparse_elements.h"
#include "kernels/sparse_kernels.h"
#include "kernels/value_elements.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define Q7X2_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define Q7X2_INDEPENDENT _Pragma("GCC ivdep")
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
  // The word in which the ties end.
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

size_t mark_largest(const float* values, size_t count, size_t head, int n, int m, uint64_t* mask) {
  for (size_t word = 0; word < mask_words(count); ++word) mask[word] = 0;
  size_t sent = 0;
  uint32_t magnitudes[32];
  for (size_t begin = 0, size = smaller(head, count); begin < count;
       begin += size, size = smaller(static_cast<size_t>(m), count - begin)) {
    for (size_t i = 0; i < size; ++i) magnitudes[i] = magnitude_bits(values[begin + i]);
    uint32_t group = 0;
    for (size_t i = 0; i < size; ++i) {
      const bool is_sent =
          is_among_largest(magnitudes, static_cast<int>(size), static_cast<int>(i), n);
      group |= static_cast<uint32_t>(is_sent ? 1 : 0) << i;
    }
    const size_t shift = begin % kWord;
    mask[begin / kWord] |= static_cast<uint64_t>(group) << shift;
    if (shift + size > kWord) mask[begin / kWord + 1] |= uint64_t{group} >> (kWord - shift);
    sent += count_of(group);
  }
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

size_t compact(const float* values, const uint64_t* mask, size_t count, float* out) {
  float* const begin = out;
  for (size_t at = 0; at < count; at += kWord) {
    uint64_t word = mask[at / kWord];
    if (word == 0) continue;
#if defined(__AVX512F__)
    // A whole vector is stored where one fits: compaction in a register and a store are far faster
    // than a compacting store.
    for (size_t i = at; word != 0; i += 16, word >>= 16) {
      const auto lanes = static_cast<__mmask16>(word);
      if (lanes == 0) continue;
      const __m512 some = _mm512_maskz_compress_ps(lanes, _mm512_maskz_loadu_ps(lanes, values + i));
      const size_t selected = count_of(lanes);
      const size_t room = count - static_cast<size_t>(out - begin);
      if (room >= 16) {
        _mm512_storeu_ps(out, some);
      } else {
        _mm512_mask_storeu_ps(out, static_cast<__mmask16>((1u << selected) - 1), some);
      }
      out += selected;
    }
#else
    for (; word != 0; word &= word - 1) *out++ = values[at + __builtin_ctzll(word)];
#endif
  }
  return static_cast<size_t>(out - begin);
}

size_t expand(const float* values, const uint64_t* mask, size_t count, Expand how, float* out) {
  const float* const begin = values;
  for (size_t at = 0; at < count; at += kWord) {
    uint64_t word = mask[at / kWord];
    if (word == 0 && how != Expand::kSet) continue;
#if defined(__AVX512F__)
    for (size_t i = at; i < at + kWord && i < count; i += 16, word >>= 16) {
      const auto lanes = static_cast<__mmask16>(word);
      if (lanes == 0 && how != Expand::kSet) continue;
      const size_t here = smaller(count - i, 16);
      const auto inside = static_cast<__mmask16>((1u << here) - 1);
      const size_t selected = count_of(lanes);
      const auto first = static_cast<__mmask16>((1u << selected) - 1);
      const __m512 some = _mm512_maskz_expand_ps(lanes, _mm512_maskz_loadu_ps(first, values));
      values += selected;
      if (how == Expand::kAdd) {
        const __m512 old = _mm512_maskz_loadu_ps(lanes, out + i);
        _mm512_mask_storeu_ps(out + i, lanes, _mm512_add_ps(old, some));
      } else {
        _mm512_mask_storeu_ps(out + i, how == Expand::kSet ? inside : lanes, some);
      }
    }
#else
    if (how == Expand::kSet) {
      for (size_t i = at; i < smaller(at + kWord, count); ++i) out[i] = 0;
    }
    if (how == Expand::kAdd) {
      for (; word != 0; word &= word - 1) out[at + __builtin_ctzll(word)] += *values++;
    } else {
      for (; word != 0; word &= word - 1) out[at + __builtin_ctzll(word)] = *values++;
    }
#endif
  }
  return static_cast<size_t>(values - begin);
}

}  // namespace

extern const SparseKernels Q7X2_SPARSE_KERNELS = {Q7X2_ISA_NAME, sum,  mark,    mark_random,
                                                  mark_largest,  norm, compact, expand};

}  // namespace q7x2
