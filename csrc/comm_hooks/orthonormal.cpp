// CholeskyQR2: A = Q R with R from the Cholesky factor of AᵀA, then the same once more for what
// rounding left. It is two matrix products and a small triangular solve, for a whole batch at once,
// where Householder and Gram-Schmidt go column by column. AᵀA squares the condition number; in fp64
// that leaves room for matrices of condition 1e7, which is all of fp32's precision. Where a matrix
// of the batch has lost rank, or is close to it, Householder QR takes the batch: it has an
// orthonormal answer for every matrix. Yamamoto et al., "Roundoff error analysis of the CholeskyQR2
// algorithm", 2015.
#include "comm_hooks/orthonormal.h"

#include <cmath>
#include <optional>
#include <tuple>

namespace q7x2 {
namespace {

constexpr double kSmallestPivot = 1e-7;  // of R, against its largest

std::optional<at::Tensor> cholesky_qr(const at::Tensor& matrices) {
  const at::Tensor gram = at::bmm(matrices.mT(), matrices);
  const auto [lower, info] = at::linalg_cholesky_ex(gram);
  const at::Tensor pivots = lower.diagonal(0, -2, -1);
  const at::Tensor sound = (info == 0).logical_and(std::get<0>(pivots.min(-1)) >
                                                   std::get<0>(pivots.max(-1)) * kSmallestPivot);
  if (!sound.all().item<bool>()) return std::nullopt;
  return at::linalg_solve_triangular(lower.mT(), matrices, /*upper=*/true, /*left=*/false);
}

}  // namespace

void make_orthonormal(at::Tensor matrices) {
  if (matrices.size(-1) == 1) {
    const at::Tensor norm = matrices.norm(2, {-2}, /*keepdim=*/true);
    const double even = 1.0 / std::sqrt(static_cast<double>(matrices.size(-2)));
    matrices.copy_(at::where(norm > 0, matrices / norm, even));
    return;
  }
  const at::Tensor wide = matrices.to(at::kDouble);
  std::optional<at::Tensor> basis = cholesky_qr(wide);
  if (basis) basis = cholesky_qr(*basis);
  matrices.copy_(basis ? *basis : std::get<0>(at::linalg_qr(wide, "reduced")));
}

}  // namespace q7x2
