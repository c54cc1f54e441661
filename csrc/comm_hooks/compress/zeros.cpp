#include "comm_hooks/compress/zeros.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

/// Ignores the signs.
template <typename Bits>
bool all_zero(const std::byte* from, size_t count) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  constexpr size_t kBlock = 64;  // at least a vector register per test
  while (count > 0) {
    const size_t length = std::min(count, kBlock);
    Bits any = 0;
    for (size_t i = 0; i < length; ++i) {
      Bits bits;
      std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
      any |= bits;
    }
    if ((any & kMagnitude) != 0) return false;
    from += length * sizeof(Bits);
    count -= length;
  }
  return true;
}

}  // namespace

bool is_zero(const void* numbers, size_t count, size_t size) {
  const auto* const from = static_cast<const std::byte*>(numbers);
  switch (size) {
    case 2:
      return all_zero<uint16_t>(from, count);
    case 4:
      return all_zero<uint32_t>(from, count);
    case 8:
      return all_zero<uint64_t>(from, count);
    default:
      break;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "expected numbers of 2, 4 or 8 bytes, got " + std::to_string(size));
}

}  // namespace q7x2
