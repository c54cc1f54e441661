// The buffer through which a group or a piece passes, and its statistics.
//
// Compiled once for each instruction set, with internal linkage: see value_codec_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/independent.h"

namespace q7x2 {
namespace {

// The length of the buffer, and of the pieces in which casts pass through it.
constexpr size_t kPiece = kLargestGroup;

struct Buffer {
  alignas(64) float sums[kPiece];
  alignas(64) float rotated[kPiece];
  alignas(64) float units[kPiece];  // or random numbers
  alignas(64) uint8_t codes[kPiece];
};

size_t round_up(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

void store_float(std::byte* at, float value) {
  __builtin_memcpy(at, &value, sizeof(value));
}

float load_float(const std::byte* at) {
  float value;
  __builtin_memcpy(&value, at, sizeof(value));
  return value;
}

// ------------------------------------------------------------------------------------- statistics

uint32_t largest_magnitude(const float* values, size_t count) {
  int32_t largest = 0;  // signed, because every instruction set can compare these
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(magnitude_bits(values[i]));
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

/// sums[i] = values[i] + add[i]; returns the largest magnitude of them.
uint32_t load_sums(const float* values, const float* add, size_t count, float* sums) {
  int32_t largest = 0;
  if (add != nullptr) {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      sums[i] = values[i] + add[i];
      const auto bits = static_cast<int32_t>(magnitude_bits(sums[i]));
      largest = bits > largest ? bits : largest;
    }
  } else {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      sums[i] = values[i];
      const auto bits = static_cast<int32_t>(magnitude_bits(sums[i]));
      largest = bits > largest ? bits : largest;
    }
  }
  return static_cast<uint32_t>(largest);
}

/// The sum of term(0) ... term(count - 1) in the order of kLanes; `count` is a multiple of kLanes.
template <class Term>
float sum_of(size_t count, Term term) {
  float lanes[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace
}  // namespace q7x2
