// The choice among the compilations of the reduction kernels.
#pragma once

#include <span>

#include "kernels/cpu/reduce_kernels.h"

namespace q7x2 {

struct ReduceIsa {
  const char* name;
  ReduceKernel* kernel;
};

/// Those that this processor runs, the best first.
std::span<const ReduceIsa> reduce_isas();

/// The one called `name`, or the best where `name` is null or empty.
/// Throws Error(kInvalidArgument) for an unknown name, or one that this processor does not run.
const ReduceIsa& select_reduce_isa(const char* name);

}  // namespace q7x2
