// The reference for reductions: the fold of one element at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/reduce.h"

namespace q7x2::test {

struct Bool {
  uint8_t value;
};

/// Calls `visit` with a value of the C++ type of `dtype`.
template <class Visit>
auto with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kUInt8:
      return visit(uint8_t{});
    case DType::kInt8:
      return visit(int8_t{});
    case DType::kUInt16:
      return visit(uint16_t{});
    case DType::kInt16:
      return visit(int16_t{});
    case DType::kUInt32:
      return visit(uint32_t{});
    case DType::kInt32:
      return visit(int32_t{});
    case DType::kUInt64:
      return visit(uint64_t{});
    case DType::kInt64:
      return visit(int64_t{});
    case DType::kBool:
      return visit(Bool{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kFloat8E4M3FN:
      return visit(Float8E4M3FN{});
    case DType::kFloat8E4M3FNUZ:
      return visit(Float8E4M3FNUZ{});
    case DType::kFloat8E5M2:
      return visit(Float8E5M2{});
    case DType::kFloat8E5M2FNUZ:
      return visit(Float8E5M2FNUZ{});
    case DType::kComplex64:
      return visit(std::complex<float>{});
    case DType::kComplex128:
      return visit(std::complex<double>{});
    case DType::kBytes:
      break;
  }
  throw Error(ErrorCode::kInternal, "no element type");
}

template <class T>
constexpr bool kIsComplex = false;
template <class Real>
constexpr bool kIsComplex<std::complex<Real>> = true;
template <class T>
constexpr bool kIsSmallFloat = std::is_class_v<T> && !kIsComplex<T> && !std::is_same_v<T, Bool>;

/// The fold of one element, according to the contract of `reduce`.
template <class V>
V fold_one(V a, V b, ReduceKind kind) {
  if constexpr (kIsComplex<V>) {
    if (kind == ReduceKind::kSum) return a + b;
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_same_v<V, Bool>) {
    const bool left = a.value != 0;
    const bool right = b.value != 0;
    switch (kind) {
      case ReduceKind::kSum:
      case ReduceKind::kMax:
      case ReduceKind::kBitOr:
        return {left || right};
      case ReduceKind::kBitXor:
        return {left != right};
      default:
        return {left && right};
    }
  } else if constexpr (std::is_floating_point_v<V>) {
    switch (kind) {
      case ReduceKind::kSum:
        return a + b;
      case ReduceKind::kProduct:
        return a * b;
      default:
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<V>::quiet_NaN();
        return kind == ReduceKind::kMin ? std::min(a, b) : std::max(a, b);
    }
  } else {
    const uint64_t left = static_cast<uint64_t>(a);
    const uint64_t right = static_cast<uint64_t>(b);
    switch (kind) {
      case ReduceKind::kSum:
        return static_cast<V>(left + right);
      case ReduceKind::kProduct:
        return static_cast<V>(left * right);
      case ReduceKind::kMin:
        return std::min(a, b);
      case ReduceKind::kMax:
        return std::max(a, b);
      case ReduceKind::kBitAnd:
        return static_cast<V>(left & right);
      case ReduceKind::kBitOr:
        return static_cast<V>(left | right);
      case ReduceKind::kBitXor:
        return static_cast<V>(left ^ right);
    }
    return V{};
  }
}

template <class V>
V mean_one(V value, int divisor) {
  if constexpr (std::is_same_v<V, Bool>) {
    return value;
  } else if constexpr (kIsComplex<V>) {
    const auto real_divisor = static_cast<typename V::value_type>(divisor);
    return {value.real() / real_divisor, value.imag() / real_divisor};
  } else if constexpr (std::is_same_v<V, uint64_t>) {
    return value / static_cast<uint64_t>(divisor);
  } else if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<int64_t>(value) / divisor);
  } else {
    return value / static_cast<V>(divisor);
  }
}

template <class T>
T reference_element(const std::vector<const void*>& sources, size_t index, ReduceKind kind,
                    int divisor) {
  const auto at = [&](size_t source) { return static_cast<const T*>(sources[source])[index]; };
  if constexpr (kIsSmallFloat<T>) {
    float folded = to_float(at(0));
    for (size_t k = 1; k < sources.size(); ++k) folded = fold_one(folded, to_float(at(k)), kind);
    return from_float<T>(mean_one(folded, divisor));
  } else {
    T folded = at(0);
    for (size_t k = 1; k < sources.size(); ++k) folded = fold_one(folded, at(k), kind);
    return mean_one(folded, divisor);
  }
}

/// Equal bits, or both NaN: which NaN the addition of two returns depends on the processor.
template <class T>
bool same(T a, T b) {
  if constexpr (kIsSmallFloat<T>) {
    return a.bits == b.bits || (std::isnan(to_float(a)) && std::isnan(to_float(b)));
  } else if constexpr (kIsComplex<T>) {
    return same(a.real(), b.real()) && same(a.imag(), b.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  } else {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  }
}

}  // namespace q7x2::test
