// The passes of PowerSGD over a matrix, each of which reads it once.
//
// Matrices are fp32, row-major and contiguous; `rank` is at least 1. Sums are computed in the same
// order on every processor, and multiplications and additions are not fused, so equal inputs give
// equal bits everywhere.
#pragma once

#include <cstddef>

namespace q7x2 {

/// The residual of a rank: matrix - left right, which is not stored explicitly.
struct OwedMatrix {
  const float* matrix = nullptr;  ///< n x m; null: the residual is zero
  const float* left = nullptr;    ///< n x rank; null: nothing is subtracted
  const float* right = nullptr;   ///< rank x m
};

struct LowRankKernels {
  const char* isa;
  /// sums = residual + share gradient, for n rows of m; a null `gradient` counts as 0.
  /// product[i][k] = sum over j of sums[i][j] basis[k][j], unless `basis` is null. `sums` may be
  /// the residual's matrix itself.
  void (*accumulate)(const OwedMatrix& owed, const float* gradient, float share, const float* basis,
                     size_t n, size_t m, size_t rank, float* sums, float* product);
  /// product[k][j] = sum over i of left[i][k] matrix[i][j], for the first `columns` of m columns of
  /// n rows; `product` also has m columns.
  void (*project)(const float* left, const float* matrix, size_t n, size_t m, size_t columns,
                  size_t rank, float* product);
  /// product[i][j] = sum over k of left[i][k] right[k][j], for n rows of m.
  void (*expand)(const float* left, const float* right, size_t n, size_t m, size_t rank,
                 float* product);
};

/// For this processor, or the instruction set that Q7X2_ISA names.
const LowRankKernels& low_rank_kernels();
/// By the name of an instruction set: "avx512", "avx2" or "baseline".
const LowRankKernels& low_rank_kernels(const char* isa);

// One per instruction set.
extern const LowRankKernels kLowRankKernelsBaseline;
#if defined(__x86_64__)
extern const LowRankKernels kLowRankKernelsAvx2;
extern const LowRankKernels kLowRankKernelsAvx512;
#endif

}  // namespace q7x2
