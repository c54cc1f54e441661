#include "kernels/codec/sum_int.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/codec/sum_int_elements.h"

namespace q7x2 {
namespace {

// Calls body(first element, number of elements, group) for each group.
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
  for_each_group(spec, block.count, [&](size_t begin, size_t count, size_t group) {
    float sums[kLargestGroup];
    Int* out = codes + begin;
    if (!is_finite(maxima[group])) {
      std::fill_n(out, count, Int{0});
      return;
    }
    add_errors(block, begin, count, sums);
    const SumIntSteps<Int> steps(maxima[group], levels);
    for (size_t i = 0; i < count; ++i) {
      out[i] = steps.code(sums[i], sum_int_chance(spec, block.rounding_key, begin, begin + i));
    }
    if (block.errors == nullptr) return;
    float* errors = block.errors + begin;
    for (size_t i = 0; i < count; ++i) errors[i] = steps.lost(sums[i], out[i]);
  });
}

template <class Int>
void decode(const ValueSpec& spec, int levels, const Int* sums, const float* maxima, int divisor,
            float* out, size_t count) {
  for_each_group(spec, count, [&](size_t begin, size_t length, size_t group) {
    const SumIntSteps<Int> steps(maxima[group], levels);
    for (size_t i = begin; i < begin + length; ++i) out[i] = steps.value(sums[i], divisor);
  });
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
    maxima[group] = group_maximum(largest);
  });
}

void encode_sum_int(const ValueSpec& spec, int levels, const SumIntBlock& block,
                    const float* maxima, void* codes) {
  with_integers(
      spec, [&]<class Int>(Int) { encode(spec, levels, block, maxima, static_cast<Int*>(codes)); });
}

void decode_sum_int(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                    int divisor, float* out, size_t count) {
  with_integers(spec, [&]<class Int>(Int) {
    decode(spec, levels, static_cast<const Int*>(sums), maxima, divisor, out, count);
  });
}

}  // namespace q7x2
