// BlockSparse: leaves out blocks of zeros where gradients have many of them.
#pragma once

#include <memory>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// `dense_above`: the share of blocks that are not zero from which on a gradient is all-reduced
/// whole. Needs process groups of q7x2.
std::unique_ptr<Hook> make_block_sparse(const HookContext& context, double dense_above);

}  // namespace q7x2
