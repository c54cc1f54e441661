// Counter-based random numbers: the n-th number of a key is a function of both, so that every
// processor gets the same, in any order.
//
// The 32-bit finaliser is that of Ellis ("lowbias32", bias 0.17) between two rounds of the key.
#pragma once

#include <cstdint>

#include "kernels/elements.h"

namespace q7x2 {

/// For keys: spreads every bit of both over the result (splitmix64; Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", 2014).
Q7X2_ELEMENT uint64_t mix_keys(uint64_t key, uint64_t more) {
  uint64_t x = key + 0x9E3779B97F4A7C15ULL * (more + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// A key made ready for the 2^32 counters that share their upper half.
struct RandomStream {
  uint32_t start;
  uint32_t factor;
};

Q7X2_ELEMENT RandomStream random_stream(uint64_t key, uint64_t counter) {
  const uint64_t mixed = mix_keys(key, counter >> 32);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32) | 1u};
}

Q7X2_ELEMENT uint32_t random_bits(RandomStream stream, uint32_t counter) {
  uint32_t x = counter * 0x9E3779B1u ^ stream.start;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * stream.factor;
  return x ^ (x >> 16);
}

/// In [0, 1), a multiple of 2^-24.
Q7X2_ELEMENT float random_unit(RandomStream stream, uint32_t counter) {
  return static_cast<float>(static_cast<int32_t>(random_bits(stream, counter) >> 8)) * 0x1p-24F;
}

}  // namespace q7x2
