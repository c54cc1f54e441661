// The reduction kernels, compiled once per instruction set.
//
// A reduce_<isa>.cpp defines Q7X2_REDUCE_KERNEL, the name of its entry point, and includes this
// file. Everything here has internal linkage, and uses only types of the standard library: the
// linker must not keep an inline function compiled for AVX-512 as the copy for all.
//
// A fold of few sources is one pass over memory with the partial results in registers. A fold of
// more sources runs in tiles that stay in the L1 cache, with their partial results in the
// accumulator's type. In both cases an element is read once from each source, rounded once and
// written once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/independent.h"
#include "kernels/cpu/reduce_ops.h"

namespace q7x2 {
namespace {

constexpr size_t kTileBytes = 4096;

// The passes. `dst` may be one of the sources.

template <class Op, class V>
Q7X2_ELEMENT V fold_values(V a, V b) {
  return Op::apply(a, b);
}
template <class Op, class V, class... Rest>
Q7X2_ELEMENT V fold_values(V a, V b, Rest... rest) {
  return fold_values<Op>(Op::apply(a, b), rest...);
}

/// dst[i] = sources[0][i] (op) sources[1][i] ... ; each of them may have the element's or the
/// accumulator's type.
template <class Op, class D, class... S>
void combine(D* dst, size_t count, const S*... sources) {
  size_t i = 0;
#if defined(Q7X2_HALF_VECTORS)
  if constexpr ((std::is_same_v<D, Float16> || ... || std::is_same_v<S, Float16>)) {
    for (; count - i >= kHalfLanes; i += kHalfLanes) {
      store(dst + i, fold_values<Op>(load(sources + i)...));
    }
  }
#endif
  Q7X2_INDEPENDENT
  for (; i < count; ++i) {
    dst[i] = narrow<D>(fold_values<Op>(widen(sources[i])...));
  }
}

/// dst[i] = src[i], from the element's to the accumulator's type or back.
template <class D, class S>
void convert(D* dst, const S* src, size_t count) {
  Q7X2_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    dst[i] = narrow<D>(widen(src[i]));
  }
}

template <class T>
Q7X2_ELEMENT T quotient(T value, int divisor) {
  if constexpr (!std::is_integral_v<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (sizeof(T) == 8) {
    return value / static_cast<T>(divisor);
  } else {
    // Unlike a division of integers this vectorises. It truncates to the same result: the quotient
    // is at least 1 / divisor below the next integer, which is more than its rounding error.
    using Real = std::conditional_t<sizeof(T) == 4, double, float>;
    return static_cast<T>(static_cast<Real>(value) / static_cast<Real>(divisor));
  }
}

template <class Real>
Q7X2_ELEMENT Complex<Real> quotient(Complex<Real> value, int divisor) {
  return {quotient(value.real, divisor), quotient(value.imag, divisor)};
}

/// dst[i] = src[i] / divisor
template <class D, class S>
void divide(D* dst, const S* src, size_t count, int divisor) {
  size_t i = 0;
#if defined(Q7X2_HALF_VECTORS)
  if constexpr (std::is_same_v<D, Float16>) {
    for (; count - i >= kHalfLanes; i += kHalfLanes) {
      store(dst + i, load(src + i) / static_cast<float>(divisor));
    }
  }
#endif
  Q7X2_INDEPENDENT
  for (; i < count; ++i) {
    dst[i] = narrow<D>(quotient(widen(src[i]), divisor));
  }
}

struct Call {
  void* dst;
  const void* const* sources;
  size_t source_count;
  size_t count;
  int divisor;
};

template <class T>
constexpr size_t kTile = kTileBytes / sizeof(Accumulator<T>);

/// `Mean` is the type of the same size in which a result is divided.
template <class T, class Op, class Mean = T>
void fold(const Call& call) {
  const auto source = [&](size_t index) { return static_cast<const T*>(call.sources[index]); };
  T* const dst = static_cast<T*>(call.dst);
  if (call.divisor == 1) {
    switch (call.source_count) {
      case 2:
        return combine<Op>(dst, call.count, source(0), source(1));
      case 3:
        return combine<Op>(dst, call.count, source(0), source(1), source(2));
      case 4:
        return combine<Op>(dst, call.count, source(0), source(1), source(2), source(3));
      default:
        break;
    }
  }
  if (call.source_count == 1) {
    return divide(static_cast<Mean*>(call.dst), static_cast<const Mean*>(call.sources[0]),
                  call.count, call.divisor);
  }
  alignas(64) Accumulator<T> tile[kTile<T>];
  // With a divisor the last source is not special: the pass that divides also rounds.
  const size_t inner = call.divisor == 1 ? call.source_count - 1 : call.source_count;
  for (size_t begin = 0; begin < call.count; begin += kTile<T>) {
    const size_t count = call.count - begin < kTile<T> ? call.count - begin : kTile<T>;
    combine<Op>(tile, count, source(0) + begin, source(1) + begin);
    for (size_t k = 2; k < inner; ++k) {
      combine<Op>(tile, count, tile, source(k) + begin);
    }
    if (call.divisor == 1) {
      combine<Op>(dst + begin, count, tile, source(inner) + begin);
    } else {
      divide(static_cast<Mean*>(call.dst) + begin, reinterpret_cast<const Accumulator<Mean>*>(tile),
             count, call.divisor);
    }
  }
}

/// Like `fold`, for types whose conversion is most of the work: each conversion is compiled once,
/// instead of in every operation.
template <class T, class Op>
void fold_converted(const Call& call) {
  const auto source = [&](size_t index) { return static_cast<const T*>(call.sources[index]); };
  T* const dst = static_cast<T*>(call.dst);
  alignas(64) Accumulator<T> tile[kTile<T>];
  alignas(64) Accumulator<T> next[kTile<T>];
  for (size_t begin = 0; begin < call.count; begin += kTile<T>) {
    const size_t count = call.count - begin < kTile<T> ? call.count - begin : kTile<T>;
    convert(tile, source(0) + begin, count);
    for (size_t k = 1; k < call.source_count; ++k) {
      convert(next, source(k) + begin, count);
      combine<Op>(tile, count, tile, next);
    }
    if (call.divisor != 1) {
      divide(tile, tile, count, call.divisor);
    }
    convert(dst + begin, tile, count);
  }
}

// From the values of the enums to types.

template <class T, class Op>
void fold_float(const Call& call) {
  if constexpr (sizeof(T) == 1) {
    fold_converted<T, Op>(call);
  } else {
    fold<T, Op>(call);
  }
}

template <class T>
void fold_floats(const Call& call, ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return fold_float<T, FloatSum>(call);
    case ReduceKind::kProduct:
      return fold_float<T, FloatProduct>(call);
    case ReduceKind::kMin:
      return fold_float<T, FloatMin>(call);
    case ReduceKind::kMax:
      return fold_float<T, FloatMax>(call);
    case ReduceKind::kBitAnd:
    case ReduceKind::kBitOr:
    case ReduceKind::kBitXor:
      __builtin_unreachable();
  }
}

template <class Real>
void fold_complex(Call call, ReduceKind kind) {
  if (kind == ReduceKind::kProduct) {
    return fold<Complex<Real>, ComplexProduct>(call);
  }
  call.count *= 2;
  fold<Real, FloatSum>(call);
}

template <class T>
void fold_integers(const Call& call, ReduceKind kind) {
  // Modulo 2^bits the sign matters only when results are compared or divided.
  using Bits = std::make_unsigned_t<T>;
  switch (kind) {
    case ReduceKind::kSum:
      return fold<Bits, IntSum, T>(call);
    case ReduceKind::kProduct:
      return fold<Bits, IntProduct, T>(call);
    case ReduceKind::kMin:
      return fold<T, IntMin>(call);
    case ReduceKind::kMax:
      return fold<T, IntMax>(call);
    case ReduceKind::kBitAnd:
      return fold<Bits, BitAnd, T>(call);
    case ReduceKind::kBitOr:
      return fold<Bits, BitOr, T>(call);
    case ReduceKind::kBitXor:
      return fold<Bits, BitXor, T>(call);
  }
}

void fold_bools(const Call& call, ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMax:
    case ReduceKind::kBitOr:
      return fold<uint8_t, BoolOr>(call);
    case ReduceKind::kProduct:
    case ReduceKind::kMin:
    case ReduceKind::kBitAnd:
      return fold<uint8_t, BoolAnd>(call);
    case ReduceKind::kBitXor:
      return fold<uint8_t, BoolXor>(call);
  }
}

void fold_any(const Call& call, DType dtype, ReduceKind kind) {
  switch (dtype) {
    case DType::kUInt8:
      return fold_integers<uint8_t>(call, kind);
    case DType::kInt8:
      return fold_integers<int8_t>(call, kind);
    case DType::kUInt16:
      return fold_integers<uint16_t>(call, kind);
    case DType::kInt16:
      return fold_integers<int16_t>(call, kind);
    case DType::kUInt32:
      return fold_integers<uint32_t>(call, kind);
    case DType::kInt32:
      return fold_integers<int32_t>(call, kind);
    case DType::kUInt64:
      return fold_integers<uint64_t>(call, kind);
    case DType::kInt64:
      return fold_integers<int64_t>(call, kind);
    case DType::kBool:
      return fold_bools(call, kind);
    case DType::kFloat16:
      return fold_floats<Float16>(call, kind);
    case DType::kBFloat16:
      return fold_floats<BFloat16>(call, kind);
    case DType::kFloat32:
      return fold_floats<float>(call, kind);
    case DType::kFloat64:
      return fold_floats<double>(call, kind);
    case DType::kFloat8E4M3FN:
      return fold_floats<Float8E4M3FN>(call, kind);
    case DType::kFloat8E4M3FNUZ:
      return fold_floats<Float8E4M3FNUZ>(call, kind);
    case DType::kFloat8E5M2:
      return fold_floats<Float8E5M2>(call, kind);
    case DType::kFloat8E5M2FNUZ:
      return fold_floats<Float8E5M2FNUZ>(call, kind);
    case DType::kComplex64:
      return fold_complex<float>(call, kind);
    case DType::kComplex128:
      return fold_complex<double>(call, kind);
    case DType::kBytes:
      __builtin_unreachable();
  }
}

}  // namespace

void Q7X2_REDUCE_KERNEL(void* dst, const void* const* sources, size_t source_count, size_t count,
                        DType dtype, ReduceKind kind, int divisor) {
  fold_any({dst, sources, source_count, count, divisor}, dtype, kind);
}

}  // namespace q7x2
