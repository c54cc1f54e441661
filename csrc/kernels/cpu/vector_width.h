// The width of the vectors for which a file is compiled.
#pragma once

#include <cstddef>

namespace q7x2 {
namespace {

/// Number of 32-bit values per register.
#if defined(__AVX512F__)
constexpr size_t kWidth = 16;
#elif defined(__AVX2__)
constexpr size_t kWidth = 8;
#else
constexpr size_t kWidth = 4;
#endif

}  // namespace
}  // namespace q7x2
