// MemoryKind: the kind of memory at an address, which code that moves its bytes must know.
#pragma once

#include <cstdint>

namespace q7x2 {

enum class MemoryKind : uint8_t {
  kHost,
  kCuda,  ///< a CUDA device's
};

}  // namespace q7x2
