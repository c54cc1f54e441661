// The passes of PowerSGD over a matrix, each of which reads it once.
//
// Matrices are fp32, row-major and contiguous; `rank` is 1 at least. Sums are taken in the same
// order on every processor, and no products are fused into sums, so equal inputs give equal bits
// everywhere.
#pragma once

#include <cstddef>

namespace q7x2 {

/// What a rank still owes: matrix - left right, which nobody has written down.
struct OwedMatrix {
  const float* matrix = nullptr;  ///< n x m; null: nothing is owed
  const float* left = nullptr;    ///< n x rank; null: nothing of it was paid
  const float* right = nullptr;   ///< rank x m
};

struct LowRankKernels {
  const char* isa;
  /// sums = owed + share gradient, for n rows of m, where a null `gradient` is 0, and
  /// product[i][k] = sum over j of sums[i][j] basis[k][j], unless `basis` is null. `sums` may be
  /// the owed matrix itself.
  void (*accumulate)(const OwedMatrix& owed, const float* gradient, float share, const float* basis,
                     size_t n, size_t m, size_t rank, float* sums, float* product);
  /// product[k][j] = sum over i of left[i][k] matrix[i][j], for the first `columns` of m columns of
  /// n rows; `product` has m columns as well.
  void (*project)(const float* left, const float* matrix, size_t n, size_t m, size_t columns,
                  size_t rank, float* product);
  /// product[i][j] = sum over k of left[i][k] right[k][j], for n rows of m.
  void (*expand)(const float* left, const float* right, size_t n, size_t m, size_t rank,
                 float* product);
};

/// For this processor, or what Q7X2_ISA asks for.
const LowRankKernels& low_rank_kernels();
/// By the name of an instruction set: "avx512", "avx2" or "baseline".
const LowRankKernels& low_rank_kernels(const char* isa);

// One for each instruction set.
extern const LowRankKernels kLowRankKernelsBaseline;
#if defined(__x86_64__)
extern const LowRankKernels kLowRankKernelsAvx2;
extern const LowRankKernels kLowRankKernelsAvx512;
#endif

}  // namespace q7x2
