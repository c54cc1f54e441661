#include "kernels/cpu/copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace q7x2 {
namespace {

#if defined(__x86_64__)
constexpr size_t kBlock = 128;
// The C library does not use `rep movsb` for fewer bytes.
constexpr size_t kShort = 2048;

__attribute__((target("avx2"))) size_t copy_blocks(char* to, const char* from, size_t bytes) {
  size_t i = 0;
  for (; i + kBlock <= bytes; i += kBlock) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    _mm256_storeu_si256(out, a);
    _mm256_storeu_si256(out + 1, b);
    _mm256_storeu_si256(out + 2, c);
    _mm256_storeu_si256(out + 3, d);
  }
  return i;
}
#endif

}  // namespace

void copy_bytes(void* destination, const void* source, size_t bytes) {
  if (bytes == 0) return;  // the pointers may be null
  size_t done = 0;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (bytes > kShort && has_avx2) {
    done = copy_blocks(static_cast<char*>(destination), static_cast<const char*>(source), bytes);
  }
#endif
  std::memcpy(static_cast<char*>(destination) + done, static_cast<const char*>(source) + done,
              bytes - done);
}

}  // namespace q7x2
