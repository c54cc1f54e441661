// The length of bodies, and the dispatch of the value stage to an instruction set.
#include "kernels/codec/value_codec.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/codec/value_elements.h"
#include "kernels/cpu/reduce_isa.h"

namespace q7x2 {
namespace {

ValueKernels kernels_of(const char* isa) {
#if defined(__x86_64__)
  if (std::strcmp(isa, "avx512") == 0) return {isa, encode_values_avx512, decode_values_avx512};
  if (std::strcmp(isa, "avx2") == 0) return {isa, encode_values_avx2, decode_values_avx2};
#endif
  return {isa, encode_values_baseline, decode_values_baseline};
}

}  // namespace

std::span<const ValueKernels> value_kernels() {
  static const std::vector<ValueKernels> kernels = [] {
    std::vector<ValueKernels> all;
    for (const ReduceIsa& isa : reduce_isas()) all.push_back(kernels_of(isa.name));
    return all;
  }();
  return kernels;
}

const ValueKernels& dispatched_value_kernels() {
  static const ValueKernels kernels = kernels_of(select_reduce_isa(std::getenv("Q7X2_ISA")).name);
  return kernels;
}

size_t value_bytes(const ValueSpec& spec, size_t count) {
  if (spec.group == 0) return count * spec.bits / 8;
  // All groups but the last are multiples of 8.
  return scales_bytes(spec, count) + (count + 7) / 8 * spec.bits;
}

}  // namespace q7x2
