// The table of value kinds, with the element functions of each.
#pragma once

#include <cstdint>

#include "kernels/codec/codec_spec.h"
#include "kernels/codec/value_elements.h"

namespace q7x2 {

/// fp32 unchanged: without error.
struct Whole {
  using Bits = uint32_t;
  Bits bits;
};

Q7X2_ELEMENT float to_float(Whole value) {
  return float_from_bits(value.bits);
}
template <>
Q7X2_ELEMENT Whole from_float<Whole>(float value) {
  return {float_to_bits(value)};
}

/// Calls `cast` with a float type, or `groups` with a coder. Not for kSumInt, which is not a value
/// stage.
template <class Cast, class Groups>
inline void with_kind(const ValueSpec& spec, Cast cast, Groups groups) {
  switch (spec.kind) {
    case ValueKind::kFloat32:
      return cast(Whole{});
    case ValueKind::kFloat16:
      return cast(Float16{});
    case ValueKind::kBFloat16:
      return cast(BFloat16{});
    case ValueKind::kFloat8E4M3:
      return groups(Float8Steps<Float8E4M3FN>{});
    case ValueKind::kFloat8E5M2:
      return groups(Float8Steps<Float8E5M2>{});
    case ValueKind::kUniform:
      if (spec.minmax) return groups(AffineSteps{(1 << spec.bits) - 1});
      [[fallthrough]];
    case ValueKind::kQsgd:
    case ValueKind::kTernary:
      return groups(SymmetricSteps{levels_of(spec.bits)});
    case ValueKind::kOneBit:
    case ValueKind::kSign:
      return groups(SignStep{});
    case ValueKind::kSumInt:
      __builtin_unreachable();
  }
}

}  // namespace q7x2
