// Counter-based random numbers: the n-th number of a key depends only on both, so every processor
// gets the same numbers, in any order.
//
// The 32-bit finaliser is Wellons' "lowbias32" (nullprogram.com/blog/2018/07/31), with one half of
// the key before it and one in its middle.
#pragma once

#include <cstdint>

#include "kernels/cpu/elements.h"

namespace q7x2 {

/// Combines keys: spreads every bit of both over the result (splitmix64; Steele, Lea and Flood,
/// "Fast splittable pseudorandom number generators", 2014).
Q7X2_ELEMENT uint64_t mix_keys(uint64_t key, uint64_t more) {
  uint64_t x = key + 0x9E3779B97F4A7C15ULL * (more + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// A key, prepared for the 2^32 counters that share their upper half.
struct RandomStream {
  uint32_t start;
  uint32_t middle;
};

Q7X2_ELEMENT RandomStream random_stream(uint64_t key, uint64_t counter) {
  const uint64_t mixed = mix_keys(key, counter >> 32);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

Q7X2_ELEMENT uint32_t random_bits(RandomStream stream, uint32_t counter) {
  uint32_t x = counter * 0x9E3779B1u + stream.start;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = ((x ^ (x >> 15)) ^ stream.middle) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

/// In [0, 1), a multiple of 2^-24.
Q7X2_ELEMENT float random_unit(RandomStream stream, uint32_t counter) {
  return static_cast<float>(static_cast<int32_t>(random_bits(stream, counter) >> 8)) * 0x1p-24F;
}

// The random numbers of a group of up to 1024 elements. One word serves several elements, at
// distances of 16, so that a vector of words becomes vectors of numbers without a shuffle.

/// The stream of the group whose first element has this index.
Q7X2_ELEMENT RandomStream group_stream(uint64_t key, uint64_t first) {
  return random_stream(mix_keys(key, first), 0);
}

/// In [0, 1), a multiple of 2^-16. With these few bits, their sum with a code of 8 bits is exact in
/// fp32, and zeros stay zeros.
Q7X2_ELEMENT float chance_of(uint32_t bits16) {
  return static_cast<float>(static_cast<int32_t>(bits16)) * 0x1p-16F;
}

/// The random number that decides whether element `index` of a group is rounded up.
Q7X2_ELEMENT float group_chance(RandomStream stream, uint32_t index) {
  const uint32_t word = random_bits(stream, index / 32 * 16 + index % 16);
  return chance_of((index & 16) == 0 ? word & 0xFFFF : word >> 16);
}

/// The sign bit or zero, for element `index` of a group.
Q7X2_ELEMENT uint32_t group_sign(RandomStream stream, uint32_t index) {
  return (random_bits(stream, index / 512 * 16 + index % 16) << (index / 16 % 32)) & 0x80000000u;
}

}  // namespace q7x2
