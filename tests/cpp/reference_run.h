// Runs Plans on real numbers, and compares with the result of their collective.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/ir/plan.h"

namespace q7x2 {

/// Runs the Plans of all ranks in one thread, slice after slice, on buffers of `length` numbers,
/// and expects the result that c10d promises for the collective.
void run_and_compare(const std::vector<Plan>& plans, size_t length, size_t slice_length);

}  // namespace q7x2
