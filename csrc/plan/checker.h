// The static checker: proves that the Plans of a whole group do what their collective promises.
#pragma once

#include <span>

#include "plan/plan.h"

namespace q7x2 {

/// `plans[r]` is rank r's Plan, all for one request. Proves, for data of any length and messages of
/// any speed:
///
///   - results: every promised output is written, with each contribution counted exactly once and
///     nothing else; inputs of out-of-place collectives, and of a reduce's other ranks, are intact;
///   - messages: each send meets exactly one receive of equal length;
///   - progress: no deadlock, even where a send completes only when it is received;
///   - races: two ops that touch the same block, one of them writing, are ordered by dependencies
///     of this rank alone;
///   - scratch: blocks are read only after they were written, with the length they were written;
///   - errors: coded Plans send input as it is only in collectives in place, where errors can be
///     added to it;
///   - buffers: scratch blocks hold no more than kMaxScratchSlices allows;
///   - means: every result passes one final reduce, which holds all contributions;
///   - bits: all ranks of an all-reduce evaluate the same expression, and Plans that claim to round
///     once fold all contributions in one reduce, in rank order.
///
/// Throws Error(kInternal) that names the algorithm, the rank and the op.
void check_plans(std::span<const Plan> plans);

}  // namespace q7x2
