#include "kernels/cpu/zero_rows.h"

#include <cstdint>
#include <cstring>

namespace q7x2 {

// Tests the sum after every two cache lines: vector loads and ORs without a branch.
bool is_zero_bits(const void* data, size_t bytes) {
  constexpr size_t kWords = 16;
  constexpr size_t kStep = kWords * sizeof(uint64_t);
  const auto* from = static_cast<const std::byte*>(data);
  for (; bytes >= kStep; bytes -= kStep, from += kStep) {
    uint64_t words[kWords];
    std::memcpy(words, from, kStep);
    uint64_t any = 0;
    for (const uint64_t word : words) any |= word;
    if (any != 0) return false;
  }
  std::byte any{0};
  for (size_t i = 0; i < bytes; ++i) any |= from[i];
  return any == std::byte{0};
}

}  // namespace q7x2
