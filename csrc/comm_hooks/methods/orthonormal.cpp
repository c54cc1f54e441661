// CholeskyQR2: A = Q R with R from the Cholesky factor of AᵀA, and then the same again to remove
// the rounding error. It needs two matrix products and a small triangular solve, for a whole batch
// at once, whereas Householder and Gram-Schmidt proceed column by column. AᵀA squares the condition
// number; in fp64 that leaves room for matrices of condition 1e7, which is all of fp32's precision.
// If a matrix of the batch has lost rank, or nearly so, Householder QR is used for the batch: it
// gives an orthonormal result for every matrix.
// Yamamoto et al., "Roundoff error analysis of the CholeskyQR2 algorithm", 2015.
#include "comm_hooks/methods/orthonormal.h"

#include <cmath>
#include <tuple>
#include <utility>

namespace q7x2 {
namespace {

constexpr double kSmallestPivot = 1e-7;  // pivot of R, relative to its largest

/// A batch during CholeskyQR2. If it is not sound, `basis` is meaningless.
struct Attempt {
  at::Tensor matrices;  // in fp64
  at::Tensor basis;
  at::Tensor is_sound;  // a scalar, on the device
};

/// Orthonormalises the current basis once more.
void cholesky_qr(Attempt& attempt) {
  const at::Tensor gram = at::bmm(attempt.basis.mT(), attempt.basis);
  const auto [lower, info] = at::linalg_cholesky_ex(gram);
  const at::Tensor pivots = lower.diagonal(0, -2, -1);
  const at::Tensor sound = (info == 0).logical_and(std::get<0>(pivots.min(-1)) >
                                                   std::get<0>(pivots.max(-1)) * kSmallestPivot);
  attempt.is_sound =
      attempt.is_sound.defined() ? attempt.is_sound.logical_and(sound.all()) : sound.all();
  attempt.basis = at::linalg_solve_triangular(lower.mT(), attempt.basis, /*upper=*/true,
                                              /*left=*/false);
}

void normalise(at::Tensor vectors) {
  const at::Tensor norm = vectors.norm(2, {-2}, /*keepdim=*/true);
  const double even = 1.0 / std::sqrt(static_cast<double>(vectors.size(-2)));
  vectors.copy_(at::where(norm > 0, vectors / norm, even));
}

}  // namespace

void make_orthonormal(const std::vector<at::Tensor>& batches) {
  std::vector<std::pair<at::Tensor, Attempt>> attempts;
  std::vector<at::Tensor> flags;
  for (const at::Tensor& batch : batches) {
    if (batch.size(-1) == 1) {
      normalise(batch);
      continue;
    }
    const at::Tensor wide = batch.to(at::kDouble);
    Attempt attempt{wide, wide, {}};
    cholesky_qr(attempt);
    cholesky_qr(attempt);
    flags.push_back(attempt.is_sound);
    attempts.emplace_back(batch, std::move(attempt));
  }
  if (attempts.empty()) return;
  const at::Tensor are_sound = at::stack(flags).cpu();
  const bool* is_sound = are_sound.const_data_ptr<bool>();
  for (auto& [batch, attempt] : attempts) {
    batch.copy_(*is_sound++ ? attempt.basis
                            : std::get<0>(at::linalg_qr(attempt.matrices, "reduced")));
  }
}

}  // namespace q7x2
