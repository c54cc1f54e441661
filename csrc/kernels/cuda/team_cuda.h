// A Team (kernels/codec/value_group.h) that is the 32 lanes of a warp.
//
// Lane j holds the numbers j, j + 32, j + 64 ... of its group in registers, one of each row of 32.
// So neighbouring lanes read neighbouring memory. Butterflies at distances of 32 and more pair
// registers, and the others pair lanes by shuffles. A row is two steps of the sum in the order of
// kLanes: lanes j and j + 16 exchange their terms, and both add first the lower one's and then the
// upper one's. No warp waits for another one.
//
// Codes are in shared memory, one byte each, because packing mixes lanes. The sums of rotated
// groups are there too, so that the registers are free for the rotation; each lane uses only its
// own sums.
//
// Included by the CUDA sources only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/launch.h"
#include "kernels/codec/value_group.h"

namespace q7x2 {
namespace {

constexpr unsigned kTeam = 32;
constexpr unsigned kThreads = 128;
constexpr unsigned kTeams = kThreads / kTeam;  // per block
constexpr unsigned kAllLanes = ~0u;

/// Up to `kRows` * 32 numbers.
template <int kRows>
struct Team {
  struct Index {
    int row;
    unsigned element;
  };
  struct Floats {
    float rows[kRows];
    __device__ float& operator[](Index i) { return rows[i.row]; }
    __device__ const float& operator[](Index i) const { return rows[i.row]; }
  };
  /// Sums of rotated groups, because the rotation needs the registers.
  struct SharedFloats {
    float* of;
    __device__ float& operator[](Index i) const { return of[i.element]; }
  };

  unsigned count;
  unsigned lane;
  uint8_t* codes;  ///< those of the team, in shared memory

  template <class Body>
  __device__ void each(Body body) const {
    Q7X2_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const unsigned element = static_cast<unsigned>(row) * kTeam + lane;
      if (element < count) body(Index{row, element});
    }
  }

  template <class Term>
  __device__ float sum(Term term) const {
    float total = 0;
    Q7X2_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const unsigned element = static_cast<unsigned>(row) * kTeam + lane;
      const float mine = element < count ? term(Index{row, element}) : 0;
      const float other = __shfl_xor_sync(kAllLanes, mine, kLanes);
      total += lane < kLanes ? mine : other;
      total += lane < kLanes ? other : mine;
    }
    Q7X2_UNROLL
    for (int half = kLanes / 2; half > 0; half /= 2) {
      total += __shfl_xor_sync(kAllLanes, total, half);
    }
    return total;
  }

  template <class Values>
  __device__ uint32_t largest(const Values& values) const {
    uint32_t most = 0;
    each([&](Index i) {
      const uint32_t bits = magnitude_bits(values[i]);
      most = bits > most ? bits : most;
    });
    return __reduce_max_sync(kAllLanes, most);
  }

  template <class Values>
  __device__ Range range(const Values& values) const {
    Range range = {0x7FFFFFFF, -0x7FFFFFFF - 1};
    each([&](Index i) {
      const int32_t value = ordered(values[i]);
      range.least = value < range.least ? value : range.least;
      range.most = value > range.most ? value : range.most;
    });
    return {__reduce_min_sync(kAllLanes, range.least), __reduce_max_sync(kAllLanes, range.most)};
  }

  template <class Coder, class Values>
  __device__ void make_codes(Coder coder, Scale scale, const Values& values, bool stochastic,
                             RandomStream chances, float* error, float error_scale) const {
    each([&](Index i) {
      const float chance = stochastic ? group_chance(chances, i.element) : 0.5F;
      const int code = coder.code(values[i], scale, chance);
      codes[i.element] = static_cast<uint8_t>(code);
      if (error != nullptr) {
        error[i.element] = (values[i] - coder.value(code, scale)) * error_scale;
      }
    });
  }

  /// Reads the codes again when they are needed, which takes fewer registers.
  template <class Coder>
  struct Units {
    Coder coder;
    const uint8_t* codes;
    __device__ float operator[](Index i) const { return coder.unit(codes[i.element]); }
  };
  template <class Coder>
  __device__ Units<Coder> units(Coder coder) const {
    return {coder, codes};
  }

  template <class Values>
  __device__ Floats floats(const Values& values) const {
    Floats copy = {};
    each([&](Index i) { copy[i] = values[i]; });
    return copy;
  }

  template <class Sums>
  __device__ void store_lost(const Sums& sums, const Floats& decoded, float scale,
                             float* error) const {
    each([&](Index i) {
      const float lost = (sums[i] - decoded[i]) * scale;
      if (is_finite(lost)) error[i.element] = lost;
    });
  }

  // A group whose size is no power of two is rotated in pieces whose sizes are: one per bit of the
  // count, the largest first. Number i is in the piece of the highest bit in which i and the count
  // differ, and a piece begins at a multiple of its length.

  __device__ void transform(Floats& values) const {
    Q7X2_UNROLL
    for (int half = kRows / 2; half > 0; half /= 2) {
      Q7X2_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const unsigned element = static_cast<unsigned>(row) * kTeam;
        if ((row & half) != 0) continue;
        if ((element ^ count) < 2 * kTeam * static_cast<unsigned>(half)) continue;
        const float a = values.rows[row];
        const float b = values.rows[row + half];
        values.rows[row] = a + b;
        values.rows[row + half] = a - b;
      }
    }
    Q7X2_ONE_BY_ONE  // one fifth of the code size
        for (unsigned half = kTeam / 2; half > 0; half /= 2) {
      Q7X2_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const unsigned element = static_cast<unsigned>(row) * kTeam + lane;
        const float mine = values.rows[row];
        const float other = __shfl_xor_sync(kAllLanes, mine, static_cast<int>(half));
        const float paired = (lane & half) == 0 ? mine + other : other - mine;
        values.rows[row] = (element ^ count) < 2 * half ? mine : paired;
      }
    }
  }

  /// Multiplies by random signs, and by the factor in lane b for pieces of 2^b numbers.
  __device__ void scale_signs(Floats& values, RandomStream signs, float factor_of_lane) const {
    const bool one_piece = (count & (count - 1)) == 0;
    const float common = __shfl_sync(kAllLanes, factor_of_lane, highest_bit(count));
    uint32_t word = 0;
    Q7X2_UNROLL
    for (int row = 0; row < kRows; ++row) {
      const unsigned element = static_cast<unsigned>(row) * kTeam + lane;
      // A word serves 32 numbers at distances of 16: two of each row, in two lanes.
      if (row % 16 == 0) {
        word = random_bits(signs, static_cast<uint32_t>(row) + lane % 16) << (lane / 16);
      }
      float factor = common;
      if (!one_piece) {
        const unsigned differ = element < count ? element ^ count : 1;
        factor = __shfl_sync(kAllLanes, factor_of_lane, highest_bit(differ));
      }
      const uint32_t sign = (word << (2 * (row % 16))) & 0x80000000u;
      values.rows[row] = float_from_bits(float_to_bits(values.rows[row] * factor) ^ sign);
    }
  }

  __device__ void rotate(Floats& values, RandomStream signs) const {
    scale_signs(values, signs, scale_into_rotation(size_t{1} << lane));
    transform(values);
  }

  __device__ void rotate_back(Floats& values, RandomStream signs, float step) const {
    transform(values);
    scale_signs(values, signs, scale_out_of_rotation(size_t{1} << lane) * step);
  }

  __device__ static int highest_bit(unsigned bits) { return 31 - __clz(static_cast<int>(bits)); }
};

/// Memory that a block's teams share, for groups that are rotated or not.
template <int kRows, bool kRotated>
struct BlockMemory {
  uint32_t codes[kTeams * kRows * kTeam / 4];
  float sums[kRotated ? kTeams * kRows * kTeam : 1];
};

/// The index of the calling thread's team in its block.
__device__ inline unsigned team_in_block() {
  return threadIdx.x / kTeam;
}

/// The team of the calling thread, for a group of `count` numbers. `codes` belongs to the block.
template <int kRows>
__device__ Team<kRows> team_of_thread(uint32_t* codes, unsigned count) {
  return {count, threadIdx.x % kTeam,
          reinterpret_cast<uint8_t*>(codes) + team_in_block() * kRows * kTeam};
}

/// The memory for the team's sums.
template <int kRows, bool kRotated>
__device__ auto sums_of_team(BlockMemory<kRows, kRotated>& memory) {
  if constexpr (kRotated) {
    return typename Team<kRows>::SharedFloats{memory.sums + team_in_block() * kRows * kTeam};
  } else {
    return typename Team<kRows>::Floats{};
  }
}

}  // namespace
}  // namespace q7x2
