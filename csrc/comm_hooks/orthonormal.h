// Orthonormal bases of batches of tall matrices.
#pragma once

#include <ATen/ATen.h>

namespace q7x2 {

/// Replaces each [n, r] matrix (r <= n) of a [batch, n, r] tensor by an orthonormal basis of a
/// space that has its columns in it, whatever its rank: a zero matrix gets some basis too. The same
/// bits give the same bits.
void make_orthonormal(at::Tensor matrices);

}  // namespace q7x2
