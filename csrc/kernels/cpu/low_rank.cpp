// Dispatches PowerSGD's passes to an instruction set.
#include "kernels/cpu/low_rank.h"

#include <cstring>

#include "kernels/cpu/reduce.h"

namespace q7x2 {

const LowRankKernels& low_rank_kernels([[maybe_unused]] const char* isa) {
#if defined(__x86_64__)
  if (std::strcmp(isa, "avx512") == 0) return kLowRankKernelsAvx512;
  if (std::strcmp(isa, "avx2") == 0) return kLowRankKernelsAvx2;
#endif
  return kLowRankKernelsBaseline;
}

const LowRankKernels& low_rank_kernels() {
  static const LowRankKernels& kernels = low_rank_kernels(reduce_isa());
  return kernels;
}

}  // namespace q7x2
