// Orthonormal bases of batches of tall matrices.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace q7x2 {

/// Replaces each [n, r] matrix (r <= n) of each [batch, n, r] tensor by an orthonormal basis of a
/// space that contains its columns. This works for any rank: even a zero matrix gets some basis.
/// The same bits give the same bits. The host waits for a device once, for any number of batches.
void make_orthonormal(const std::vector<at::Tensor>& batches);

}  // namespace q7x2
