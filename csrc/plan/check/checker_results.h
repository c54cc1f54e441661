// What a collective promises about its results, and whether a run has kept it.
#pragma once

#include "plan/check/checker_run.h"

namespace q7x2::checker {

/// `run` must be complete. Throws Error(kInternal); its message names the first wrong part.
void check_results(const CheckedGroup& group, Expressions& expressions, const SymbolicRun& run);

}  // namespace q7x2::checker
