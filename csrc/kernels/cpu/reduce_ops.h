// The operations of a reduction on two elements, and the types of partial results.
//
// Compiled once for each instruction set, with internal linkage: see reduce_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/half_vectors.h"

namespace q7x2 {
namespace {

template <class Real>
struct Complex {
  Real real;
  Real imag;
};

// The type of partial results of T, and the conversions to and from it.

template <class T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<Float16> {
  using Type = float;
};
template <>
struct AccumulatorOf<BFloat16> {
  using Type = float;
};
template <>
struct AccumulatorOf<Float8E4M3FN> {
  using Type = float;
};
template <>
struct AccumulatorOf<Float8E4M3FNUZ> {
  using Type = float;
};
template <>
struct AccumulatorOf<Float8E5M2> {
  using Type = float;
};
template <>
struct AccumulatorOf<Float8E5M2FNUZ> {
  using Type = float;
};

template <class T>
using Accumulator = typename AccumulatorOf<T>::Type;

template <class T>
Q7X2_ELEMENT Accumulator<T> widen(T value) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return value;
  } else {
    return to_float(value);
  }
}

template <class T>
Q7X2_ELEMENT T narrow(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return value;
  } else {
    return from_float<T>(value);
  }
}

// The operations. Those for floats take a float, a double, or a vector of floats.

struct FloatSum {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return a + b;
  }
};
struct FloatProduct {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return a * b;
  }
};
// The position decides between two NaNs, and between zeros of different sign: if the right operand
// is a NaN, it is the result; if both are equal, the left one is.
struct FloatMin {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return (b < a) | (b != b) ? b : a;
  }
};
struct FloatMax {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return (b > a) | (b != b) ? b : a;
  }
};

struct ComplexProduct {
  template <class Real>
  Q7X2_ELEMENT static Complex<Real> apply(Complex<Real> a, Complex<Real> b) {
    return {rounded(a.real * b.real) - rounded(a.imag * b.imag),
            rounded(a.real * b.imag) + rounded(a.imag * b.real)};
  }

  // GCC's vectoriser uses vfmaddsub for a complex product in spite of -ffp-contract, so that
  // instruction sets would differ in the last bit. This barrier prevents it.
  template <class Real>
  Q7X2_ELEMENT static Real rounded(Real product) {
#if __has_builtin(__builtin_assoc_barrier)
    return __builtin_assoc_barrier(product);
#else
    return product;
#endif
  }
};

// Integers are computed modulo 2^bits, in an unsigned type that is not promoted to int.
template <class V>
using Modular = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;

struct IntSum {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return static_cast<V>(static_cast<Modular<V>>(a) + static_cast<Modular<V>>(b));
  }
};
struct IntProduct {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return static_cast<V>(static_cast<Modular<V>>(a) * static_cast<Modular<V>>(b));
  }
};
struct IntMin {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return b < a ? b : a;
  }
};
struct IntMax {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return b > a ? b : a;
  }
};
struct BitAnd {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return static_cast<V>(a & b);
  }
};
struct BitOr {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return static_cast<V>(a | b);
  }
};
struct BitXor {
  template <class V>
  Q7X2_ELEMENT static V apply(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};

// Bools are bytes; every value except zero is true.
struct BoolAnd {
  Q7X2_ELEMENT static uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) & (b != 0); }
};
struct BoolOr {
  Q7X2_ELEMENT static uint8_t apply(uint8_t a, uint8_t b) { return (a | b) != 0; }
};
struct BoolXor {
  Q7X2_ELEMENT static uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) ^ (b != 0); }
};

}  // namespace
}  // namespace q7x2
