#include "kernels/sum_int.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "kernels/random.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

// Visits the groups: (first element, elements, group).
template <class Body>
void for_each_group(const ValueSpec& spec, size_t count, Body body) {
  for (size_t begin = 0, group = 0; begin < count; begin += spec.group, ++group) {
    body(begin, std::min<size_t>(spec.group, count - begin), group);
  }
}

void add_errors(const SumIntBlock& block, size_t begin, size_t count, float* sums) {
  const float* values = block.values + begin;
  if (block.errors == nullptr) {
    for (size_t i = 0; i < count; ++i) sums[i] = values[i];
  } else {
    const float* errors = block.errors + begin;
    for (size_t i = 0; i < count; ++i) sums[i] = values[i] + errors[i];
  }
}

/// How the numbers of a group become integers, and sums of integers numbers. `m`: the largest
/// magnitude. fp32 holds integers of 16 bits, so its arithmetic is enough for them.
template <class Int>
class Steps {
 public:
  using Real = float;

  Steps(float m, int levels)
      : scale_(scale_to(m, static_cast<float>(levels))), levels_(static_cast<float>(levels)) {}

  /// Rounded down after `chance` is added: one half is to the nearest.
  int64_t code(float value, float chance) const {
    const int biased = static_cast<int>(value * scale_.inverse + (levels_ + chance));
    return biased - static_cast<int>(levels_);
  }
  float step() const { return scale_.step; }

 private:
  Scale scale_;
  float levels_;
};

template <>
class Steps<int32_t> {
 public:
  using Real = double;

  Steps(float m, int levels) {
    if (!(m >= kLeastMagnitude)) return;
    int exponent = 0;
    const double fraction = std::frexp(m / static_cast<double>(levels), &exponent);
    step_ = std::ldexp(1.0, fraction > 0.5 ? exponent : exponent - 1);
    inverse_ = 1 / step_;
  }

  int64_t code(float value, float chance) const {
    return static_cast<int64_t>(std::floor(value * inverse_ + chance));
  }
  double step() const { return step_; }

 private:
  double step_ = 0;
  double inverse_ = 0;
};

template <class Int>
void encode(const ValueSpec& spec, int levels, const SumIntBlock& block, const float* maxima,
            Int* codes) {
  using Real = Steps<Int>::Real;
  const int64_t most = levels;
  for_each_group(spec, block.count, [&](size_t begin, size_t count, size_t group) {
    float sums[kLargestGroup];
    Int* out = codes + begin;
    if (magnitude_bits(maxima[group]) >= kInfinityBits) {
      std::fill_n(out, count, Int{0});
      return;
    }
    add_errors(block, begin, count, sums);
    const Steps<Int> steps(maxima[group], levels);
    const RandomStream stream = random_stream(block.rounding_key, begin);
    for (size_t i = 0; i < count; ++i) {
      const float chance =
          spec.stochastic ? random_unit(stream, static_cast<uint32_t>(begin + i)) : 0.5F;
      out[i] = static_cast<Int>(std::clamp(steps.code(sums[i], chance), -most, most));
    }
    if (block.errors == nullptr) return;
    float* errors = block.errors + begin;
    for (size_t i = 0; i < count; ++i) {
      errors[i] = static_cast<float>(sums[i] - static_cast<Real>(out[i]) * steps.step());
    }
  });
}

template <class Int>
void decode(const ValueSpec& spec, int levels, const Int* sums, const float* maxima, int divisor,
            float* out, size_t count) {
  using Real = Steps<Int>::Real;
  const auto by = static_cast<Real>(divisor);
  for_each_group(spec, count, [&](size_t begin, size_t length, size_t group) {
    const bool is_finite = magnitude_bits(maxima[group]) < kInfinityBits;
    const Real step =
        is_finite ? Steps<Int>(maxima[group], levels).step() : float_from_bits(0x7FC00000);
    for (size_t i = begin; i < begin + length; ++i) {
      out[i] = static_cast<float>(static_cast<Real>(sums[i]) * step / by);
    }
  });
}

/// Calls `body` with a pointer to integers of the spec's bits.
template <class Void, class Body>
void with_codes(const ValueSpec& spec, Void* codes, Body body) {
  const auto as = [codes]<class Int>(Int) {
    using Element = std::conditional_t<std::is_const_v<Void>, const Int, Int>;
    return static_cast<Element*>(codes);
  };
  switch (spec.bits) {
    case 8:
      return body(as(int8_t{}));
    case 16:
      return body(as(int16_t{}));
    default:
      return body(as(int32_t{}));
  }
}

}  // namespace

int sum_int_levels(const ValueSpec& spec, int ranks) {
  const int levels = levels_of(spec.bits) / ranks;
  if (levels < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "sumint" + std::to_string(spec.bits) + " has room for the sum of " +
                    std::to_string(levels_of(spec.bits)) + " ranks, not of " +
                    std::to_string(ranks) + "; expected sumint" + std::to_string(2 * spec.bits));
  }
  return levels;
}

void group_maxima(const ValueSpec& spec, const SumIntBlock& block, float* maxima) {
  for_each_group(spec, block.count, [&](size_t begin, size_t count, size_t group) {
    float sums[kLargestGroup];
    add_errors(block, begin, count, sums);
    uint32_t largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(sums[i]));
    maxima[group] = float_from_bits(largest >= kInfinityBits ? 0x7FC00000 : largest);
  });
}

void encode_sum_int(const ValueSpec& spec, int levels, const SumIntBlock& block,
                    const float* maxima, void* codes) {
  with_codes(spec, codes, [&](auto* out) { encode(spec, levels, block, maxima, out); });
}

void decode_sum_int(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                    int divisor, float* out, size_t count) {
  with_codes(spec, sums,
             [&](const auto* in) { decode(spec, levels, in, maxima, divisor, out, count); });
}

}  // namespace q7x2
