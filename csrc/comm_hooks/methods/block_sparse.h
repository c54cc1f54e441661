// BlockSparse: leaves out blocks of zeros if gradients have many of them.
#pragma once

#include <memory>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// `dense_above`: if a larger share of a gradient's blocks is not zero, the whole gradient is
/// all-reduced. Needs process groups of q7x2.
std::unique_ptr<Hook> make_block_sparse(const HookContext& context, double dense_above);

}  // namespace q7x2
