#include "kernels/sum_int.h"

#include <algorithm>
#include <string>

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

template <class Int>
void encode(const ValueSpec& spec, int levels, const SumIntBlock& block, const float* maxima,
            Int* codes) {
  const auto largest = static_cast<float>(levels);
  for_each_group(spec, block.count, [&](size_t begin, size_t count, size_t group) {
    float sums[kLargestGroup];
    Int* out = codes + begin;
    if (magnitude_bits(maxima[group]) >= kInfinityBits) {
      std::fill_n(out, count, Int{0});
      return;
    }
    add_errors(block, begin, count, sums);
    const Scale scale = scale_to(maxima[group], largest);
    const RandomStream stream = random_stream(block.rounding_key, begin);
    for (size_t i = 0; i < count; ++i) {
      const float chance =
          spec.stochastic ? random_unit(stream, static_cast<uint32_t>(begin + i)) : 0.5F;
      const int code = static_cast<int>(sums[i] * scale.inverse + (largest + chance)) - levels;
      out[i] = static_cast<Int>(std::clamp(code, -levels, levels));
    }
    if (block.errors == nullptr) return;
    float* errors = block.errors + begin;
    for (size_t i = 0; i < count; ++i) {
      errors[i] = sums[i] - static_cast<float>(out[i]) * scale.step;
    }
  });
}

template <class Int>
void decode(const ValueSpec& spec, int levels, const Int* sums, const float* maxima, int divisor,
            float* out, size_t count) {
  const auto by = static_cast<float>(divisor);
  for_each_group(spec, count, [&](size_t begin, size_t length, size_t group) {
    const bool is_finite = magnitude_bits(maxima[group]) < kInfinityBits;
    const float step = is_finite ? scale_to(maxima[group], static_cast<float>(levels)).step
                                 : float_from_bits(0x7FC00000);
    for (size_t i = begin; i < begin + length; ++i) {
      out[i] = static_cast<float>(sums[i]) * step / by;
    }
  });
}

}  // namespace

int sum_int_levels(const ValueSpec& spec, int ranks) {
  const int levels = levels_of(spec.bits) / ranks;
  if (levels < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "sumint" + std::to_string(spec.bits) + " has room for the sum of " +
                    std::to_string(levels_of(spec.bits)) + " ranks, not of " +
                    std::to_string(ranks) + (spec.bits == 8 ? "; expected sumint16" : ""));
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
  if (spec.bits == 8) {
    encode(spec, levels, block, maxima, static_cast<int8_t*>(codes));
  } else {
    encode(spec, levels, block, maxima, static_cast<int16_t*>(codes));
  }
}

void decode_sum_int(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                    int divisor, float* out, size_t count) {
  if (spec.bits == 8) {
    decode(spec, levels, static_cast<const int8_t*>(sums), maxima, divisor, out, count);
  } else {
    decode(spec, levels, static_cast<const int16_t*>(sums), maxima, divisor, out, count);
  }
}

}  // namespace q7x2
