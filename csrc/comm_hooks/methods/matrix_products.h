// The three products of PowerSGD on stacks of matrices, and residuals that are not stored
// explicitly.
//
// On the CPU in fp32 they are the passes of kernels/cpu/low_rank.h, each of which reads a matrix
// once; otherwise they use ATen.
#pragma once

#include <vector>

#include "comm_hooks/methods/matrix_stack.h"

namespace q7x2 {

/// M = residual + share * gradient, and the product M Q (`left`) or M^T P with the stack's basis.
/// `gradients[row]` is the gradient of a member, n x m; undefined: M is 0.
void load_and_multiply(Stack& stack, const std::vector<at::Tensor>& gradients, double share,
                       bool left, at::Tensor& product);

/// M Q (`left`), or M^T P.
void multiply(const at::Tensor& matrices, const at::Tensor& basis, bool left, at::Tensor& product);

/// Writes the product of the sums' factors to the means, n x m each. If the stack has residuals,
/// they become M - product of `own` (this rank's factors) - `mean_share` (1 / ranks) * the rounding
/// error of the means, if their type is narrower.
void expand(Stack& stack, const Factors& sums, const Factors& own,
            const std::vector<at::Tensor>& means, double mean_share);

/// Computes the residual explicitly, and stores it as M.
void write_down(Stack& stack);

}  // namespace q7x2
