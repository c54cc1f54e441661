// What a collective promises of its results, and whether a run has kept it.
#pragma once

#include "plan/check/checker_run.h"

namespace q7x2::checker {

/// `run` is complete. Throws Error(kInternal) that names the first part that is wrong.
void check_results(const CheckedGroup& group, Expressions& expressions, const SymbolicRun& run);

}  // namespace q7x2::checker
