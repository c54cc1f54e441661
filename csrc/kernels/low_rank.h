// The two passes of PowerSGD over a matrix, each of which reads and writes it once.
//
// Matrices are fp32, row-major and contiguous; thin ones have `rank` rows. A sum over a row is
// taken in 16 lanes on every processor, and no products are fused into sums, so equal inputs give
// equal bits everywhere.
#pragma once

#include <cstddef>

namespace q7x2 {

struct LowRankKernels {
  const char* isa;
  /// sums[i][j] = residual[i][j] + share gradient[i][j] for n rows of m, where `residual` may be
  /// null, and product[i][k] = sum over j of sums[i][j] basis[k][j].
  void (*accumulate)(const float* residual, const float* gradient, float share, const float* basis,
                     size_t n, size_t m, size_t rank, float* sums, float* product);
  /// gradient[i][j] = sum over k of left[i][k] right[k][j] for n rows of m, and
  /// residual[i][j] -= share gradient[i][j], where `residual` may be null.
  void (*expand)(const float* left, const float* right, float share, size_t n, size_t m,
                 size_t rank, float* gradient, float* residual);
};

/// For this processor, or what Q7X2_ISA asks for.
const LowRankKernels& low_rank_kernels();
/// By the name of an instruction set: "avx512", "avx2" or "baseline".
const LowRankKernels& low_rank_kernels(const char* isa);

}  // namespace q7x2
