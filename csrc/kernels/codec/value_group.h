// The value stage of one group, written once for CPUs and GPUs.
//
// A Team works on a group: one thread of the CPU, which passes over a buffer, or a warp of a GPU,
// which holds the group in registers. It has
//
//   Floats               numbers of the group: floats[index]
//   count                number of numbers
//   sum(term)            the sum of term(index), in the order that kLanes prescribes
//   largest(values)      bits of the largest magnitude
//   range(values)        the least and the largest number, as `ordered` integers
//   floats(values)       a copy
//   rotate(floats, signs), rotate_back(floats, signs, step)
//   make_codes(...)      sets the codes of values, and their errors
//   units(coder)         units[index]: the unit values of the codes
//   store_lost(...)      sets the errors of values that are decoded in another way
//
// `values` are Floats, or anything else with values[index]. All teams give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/random.h"
#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"

#if defined(__CUDACC__)
#define Q7X2_TEAM __device__ __forceinline__
#else
#define Q7X2_TEAM inline
#endif

namespace q7x2 {
namespace {

/// Two `ordered` integers.
struct Range {
  int32_t least;
  int32_t most;
};

/// The scale of a group whose largest magnitude is finite.
template <class Team, class Coder, class Values>
Q7X2_TEAM Scale scale_of(const Team& team, Coder, const ValueSpec& spec, const Values& values,
                         uint32_t largest_bits, bool stochastic) {
  const float largest = float_from_bits(largest_bits);
  const float most = largest_unit(spec);
  if constexpr (Coder::kScale == ScaleBy::kRange) {
    const Range range = team.range(values);
    return scale_between(from_ordered(range.least), from_ordered(range.most), spec.bits);
  } else if constexpr (Coder::kScale == ScaleBy::kMean) {
    if (spec.kind == ValueKind::kSign) return {1, 1, 0};
    const float sum =
        team.sum([&](auto i) { return float_from_bits(magnitude_bits(values[i])) * kSumScale; });
    return scale_to_mean(sum, static_cast<int>(team.count));
  } else if constexpr (Coder::kScale == ScaleBy::kSquares) {
    const bool clips = spec.kind == ValueKind::kUniform && spec.hadamard && !stochastic;
    if (!clips && spec.kind != ValueKind::kQsgd) return scale_to(largest, most);
    const float inverse = scale_to(largest, 1).inverse;
    const float squares = team.sum([&](auto i) {
      const float part = values[i] * inverse;
      return part * part;
    });
    if (!clips) return scale_to_norm(largest, squares, most);
    return scale_to_clip(largest, squares, static_cast<int>(team.count), spec.bits, most);
  } else {
    return scale_to(largest, most);
  }
}

// Both encode `sums`, whose largest magnitude must be finite, and write their error. `error` is
// that of the first number, and may be null. They return the scale of the codes. If the group has
// no valid scale, its step is not finite, and the codes are not set.

template <class Team, class Coder, class Floats>
Q7X2_TEAM Scale encode_plain(Team& team, Coder coder, const ValueSpec& spec,
                             const ValueBlock& block, uint64_t first, const Floats& sums,
                             uint32_t largest, float* error) {
  const bool stochastic = spec.stochastic && error == nullptr;
  const Scale scale = scale_of(team, coder, spec, sums, largest, stochastic);
  if (is_finite(scale.step)) {
    team.make_codes(coder, scale, sums, stochastic, group_stream(block.rounding_key, first), error,
                    block.error_scale);
  }
  return scale;
}

template <class Team, class Coder, class Floats>
Q7X2_TEAM Scale encode_rotated(Team& team, Coder coder, const ValueSpec& spec,
                               const ValueBlock& block, uint64_t first, const Floats& sums,
                               float* error) {
  const bool stochastic = spec.stochastic && error == nullptr;
  const RandomStream signs = group_stream(block.shared_key, first);
  typename Team::Floats rotated = team.floats(sums);
  team.rotate(rotated, signs);
  Scale scale = scale_of(team, coder, spec, rotated, team.largest(rotated), stochastic);
  if (!is_finite(scale.step)) return scale;
  team.make_codes(coder, scale, rotated, stochastic, group_stream(block.rounding_key, first),
                  nullptr, 0);
  if (stochastic) return scale;
  const auto units = team.units(coder);
  const float inverse = scale.inverse;
  const float along = team.sum([&](auto i) { return rotated[i] * inverse * units[i]; });
  if (error == nullptr) {
    const float squares = team.sum([&](auto i) {
      const float part = rotated[i] * inverse;
      return part * part;
    });
    scale.step = step_to_project(scale.step, squares, along);
    return scale;
  }
  const float unit_squares = team.sum([&](auto i) { return units[i] * units[i]; });
  scale.step = step_to_fit(scale.step, unit_squares, along);
  typename Team::Floats decoded = team.floats(units);
  team.rotate_back(decoded, signs, scale.step);
  team.store_lost(sums, decoded, block.error_scale, error);
  return scale;
}

}  // namespace
}  // namespace q7x2
