// Dispatches the select stage to an instruction set.
#include "kernels/codec/sparse_kernels.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cpu/reduce_isa.h"

namespace q7x2 {
namespace {

const SparseKernels& kernels_of([[maybe_unused]] const char* isa) {
#if defined(__x86_64__)
  if (std::strcmp(isa, "avx512") == 0) return kSparseKernelsAvx512;
  if (std::strcmp(isa, "avx2") == 0) return kSparseKernelsAvx2;
#endif
  return kSparseKernelsBaseline;
}

}  // namespace

std::span<const SparseKernels* const> sparse_kernels() {
  static const std::vector<const SparseKernels*> kernels = [] {
    std::vector<const SparseKernels*> all;
    for (const ReduceIsa& isa : reduce_isas()) all.push_back(&kernels_of(isa.name));
    return all;
  }();
  return kernels;
}

const SparseKernels& dispatched_sparse_kernels() {
  static const SparseKernels& kernels = kernels_of(select_reduce_isa(std::getenv("Q7X2_ISA")).name);
  return kernels;
}

}  // namespace q7x2
