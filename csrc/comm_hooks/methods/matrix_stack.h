// Stack: the matrices of one shape in one bucket, which are compressed by the same operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace q7x2 {

/// n x m, and the rank of its approximation.
struct MatrixShape {
  int64_t n = 0;
  int64_t m = 0;
  int64_t rank = 0;  ///< 0: it is sent whole

  bool operator==(const MatrixShape&) const = default;
};

/// The factors of all matrices of a stack; undefined: their product is 0.
struct Factors {
  at::Tensor left;   ///< [members, n, rank]
  at::Tensor right;  ///< [members, rank, m]
};

struct Stack {
  MatrixShape shape;
  std::vector<size_t> members;  ///< indices into the coded gradients of the exchange
  // The residual: M minus this rank's contribution to the product that all ranks have applied.
  at::Tensor owed;  ///< M, [members, n, m]: a piece of the memory; undefined without residuals
  Factors paid;
  at::Tensor basis;        ///< [members, m or n, rank], orthonormal: Q, or P
  at::Tensor other_basis;  ///< the last basis of the other side; only with `alternating`
  // The values of the step in flight; they replace the four above when it is committed.
  at::Tensor next_owed;
  Factors next_paid;
  at::Tensor next_basis;

  /// Whether there is no second copy of residuals.
  bool is_in_place() const { return owed.defined() && owed.data_ptr() == next_owed.data_ptr(); }
  int64_t count() const { return static_cast<int64_t>(members.size()); }
};

}  // namespace q7x2
