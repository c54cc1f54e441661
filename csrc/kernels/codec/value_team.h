// A Team (kernels/codec/value_group.h) that is one thread of the CPU, which passes over a buffer.
//
// Compiled once for each instruction set, with internal linkage: see value_codec_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/random.h"
#include "kernels/codec/rotate.h"
#include "kernels/codec/value_elements.h"
#include "kernels/codec/value_group.h"
#include "kernels/codec/value_pieces.h"
#include "kernels/cpu/independent.h"

namespace q7x2 {
namespace {

/// The `group_chance` of each element; `count` is a multiple of 32.
void fill_chances(RandomStream stream, size_t count, float* chances) {
  for (size_t i = 0; i < count; i += 32) {
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t word = random_bits(stream, static_cast<uint32_t>(i / 2 + j));
      chances[i + j] = chance_of(word & 0xFFFF);
      chances[i + 16 + j] = chance_of(word >> 16);
    }
  }
}

/// `error` may be null.
template <class Coder, class Chance>
void make_codes(Coder coder, Scale scale, const float* values, size_t count, Chance chance,
                uint8_t* codes, float* error, float error_scale) {
  if (error == nullptr) {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<uint8_t>(coder.code(values[i], scale, chance(i)));
    }
  } else {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      const int code = coder.code(values[i], scale, chance(i));
      codes[i] = static_cast<uint8_t>(code);
      error[i] = (values[i] - coder.value(code, scale)) * error_scale;
    }
  }
}

template <class Coder>
void make_units(Coder coder, const uint8_t* codes, size_t count, float* units) {
  for (size_t i = 0; i < count; ++i) units[i] = coder.unit(codes[i]);
}

/// The buffer holds the numbers, followed by zeros up to a multiple of kLanes.
struct Team {
  using Floats = float*;
  struct Units {
    float* of;
    float operator[](size_t i) const { return of[i]; }
  };

  size_t count;
  Buffer* buffer;

  size_t padded() const { return round_up(count, kLanes); }

  template <class Term>
  float sum(Term term) const {
    return sum_of(padded(), term);
  }
  uint32_t largest(const float* values) const { return largest_magnitude(values, count); }
  Range range(const float* values) const {
    Range range = {ordered(values[0]), ordered(values[0])};
    for (size_t i = 0; i < count; ++i) {
      const int32_t value = ordered(values[i]);
      range.least = value < range.least ? value : range.least;
      range.most = value > range.most ? value : range.most;
    }
    return range;
  }

  float* floats(const float* values) const {
    const size_t length = padded();
    float* copy = buffer->rotated;
    for (size_t i = 0; i < length; ++i) copy[i] = values[i];
    return copy;
  }
  float* floats(Units units) const { return units.of; }

  void rotate(float* values, RandomStream signs) const { q7x2::rotate(values, count, signs); }
  void rotate_back(float* values, RandomStream signs, float step) const {
    q7x2::rotate_back(values, count, signs, step);
  }

  template <class Coder>
  void make_codes(Coder coder, Scale scale, const float* values, bool stochastic,
                  RandomStream stream, float* error, float error_scale) const {
    if (stochastic) {
      const float* chances = buffer->units;
      fill_chances(stream, round_up(count, 32), buffer->units);
      q7x2::make_codes(
          coder, scale, values, count, [=](size_t i) { return chances[i]; }, buffer->codes, error,
          error_scale);
    } else {
      q7x2::make_codes(
          coder, scale, values, count, [](size_t) { return 0.5F; }, buffer->codes, error,
          error_scale);
    }
  }

  template <class Coder>
  Units units(Coder coder) const {
    make_units(coder, buffer->codes, count, buffer->units);
    for (size_t i = count; i < padded(); ++i) buffer->units[i] = 0;
    return {buffer->units};
  }

  void store_lost(const float* sums, const float* decoded, float scale, float* error) const {
    Q7X2_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
      const float lost = (sums[i] - decoded[i]) * scale;
      error[i] = is_finite(lost) ? lost : error[i];
    }
  }
};

}  // namespace
}  // namespace q7x2
