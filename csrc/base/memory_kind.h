// MemoryKind: what kind of memory an address is of, as whoever moves its bytes must know it.
#pragma once

#include <cstdint>

namespace q7x2 {

enum class MemoryKind : uint8_t {
  kHost,
  kCuda,  ///< of a device, as CUDA's driver knows it
};

}  // namespace q7x2
