// Vectors of fp32 that the processor itself converts from and to fp16, if it can: then
// Q7X2_HALF_VECTORS is defined. Compiled once per instruction set.
#pragma once

#include <cstddef>

#include "kernels/cpu/elements.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace q7x2 {
namespace {

#if defined(__AVX512F__)
#define Q7X2_HALF_VECTORS 1
constexpr size_t kHalfLanes = 16;

// Masked conversions with all lanes on, because GCC 12 warns about unset lanes in the plain ones.
constexpr __mmask16 kAllLanes = 0xFFFF;

Q7X2_ELEMENT __m512 load(const float* from) {
  return _mm512_loadu_ps(from);
}
Q7X2_ELEMENT __m512 load(const Float16* from) {
  return _mm512_maskz_cvtph_ps(kAllLanes,
                               _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
Q7X2_ELEMENT void store(float* to, __m512 value) {
  _mm512_storeu_ps(to, value);
}
Q7X2_ELEMENT void store(Float16* to, __m512 value) {
  // The processor keeps a NaN's payload: clear it, like from_float.
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  constexpr int kSelectOr = 0xEA;  // (a & b) | c
  const __m512i clean = _mm512_mask_ternarylogic_epi32(
      _mm512_castps_si512(value), is_nan, _mm512_set1_epi32(static_cast<int>(0xFF800000)),
      _mm512_set1_epi32(0x00400000), kSelectOr);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(kAllLanes, _mm512_castsi512_ps(clean),
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__F16C__) && defined(__AVX2__)
#define Q7X2_HALF_VECTORS 1
constexpr size_t kHalfLanes = 8;

Q7X2_ELEMENT __m256 load(const float* from) {
  return _mm256_loadu_ps(from);
}
Q7X2_ELEMENT __m256 load(const Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
Q7X2_ELEMENT void store(float* to, __m256 value) {
  _mm256_storeu_ps(to, value);
}
Q7X2_ELEMENT void store(Float16* to, __m256 value) {
  // The processor keeps a NaN's payload: clear it, like from_float.
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256 sign_and_exponent =
      _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xFF800000)));
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x00400000));
  const __m256 clean =
      _mm256_blendv_ps(value, _mm256_or_ps(_mm256_and_ps(value, sign_and_exponent), quiet), is_nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

}  // namespace
}  // namespace q7x2
