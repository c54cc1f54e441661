// Selects among the compiled versions of the reduction kernels.
#pragma once

#include <span>

#include "kernels/cpu/reduce_kernels.h"

namespace q7x2 {

struct ReduceIsa {
  const char* name;
  ReduceKernel* kernel;
};

/// The versions that this processor can run, the best first.
std::span<const ReduceIsa> reduce_isas();

/// The version called `name`, or the best if `name` is null or empty.
/// Throws Error(kInvalidArgument) if the name is unknown, or if this processor cannot run it.
const ReduceIsa& select_reduce_isa(const char* name);

}  // namespace q7x2
