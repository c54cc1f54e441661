// The static checker: proves that the Plans of a whole group do what their contract promises.
#pragma once

#include <cstddef>
#include <span>

#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// Proves the following for the Plans of all ranks, for data of any length and any message delays:
///
///   - contract: the output of every receiver is written, and that of no other rank. Results of
///     reductions contain at least `quorum` contributions, each exactly once, and nothing else;
///     the other collectives contain the contributors' data. The inputs of out-of-place
///     collectives, and the buffers of ranks that receive nothing, do not change;
///   - messages: each send matches exactly one receive of equal length, and its id is valid;
///   - progress: no deadlock, even if a send completes only when it is received, for any number
///     of slices and any windows;
///   - races: two ops that use the same block, one of them writing, are ordered by dependencies of
///     this rank alone; so are two ops that use the same residual;
///   - scratch: blocks are read only after they were written, with the length that was written;
///   - residuals: in a call with a codec, each result contains the residual of each of its
///     contributors exactly once, and a rank encodes each part of its input at most once;
///   - buffers: scratch blocks hold no more than kMaxScratchSlices allows; sends of one stage carry
///     the same bytes, so a window of slices stages at most window x stages blocks, for any number
///     of slices;
///   - means: every result of several contributors passes one final reduce, which contains all;
///   - bits: all receivers of an all-reduce evaluate the same expression, and Plans that claim to
///     round once fold all contributions in one reduce, in rank order.
///
/// Throws Error(kInternal); its message names the algorithm, the rank and the op. The time grows
/// with the number of ops of all ranks, and with the square of the number of ops per rank.
void check_schedule(const Schedule& schedule);

/// The same for Plans: `plans[r]` is rank r's.
void check_plans(std::span<const Plan> plans, const Contract& contract);
/// The same, with the contract of c10d for the collective.
void check_plans(std::span<const Plan> plans);

/// Which share of a large Schedule is checked.
struct SampleSize {
  size_t peers = 32;             ///< per sampled rank, evenly spread over all its peers
  size_t ops = size_t{1} << 22;  ///< in the Plans through which results are traced
};

/// For Schedules that are so large that the Plans of all ranks do not fit in memory: projects
/// `ranks` and some of their peers, and keeps a bounded number of Plans.
///
/// Proves for `ranks`: their ops name existing blocks and use them correctly, their DAGs have no
/// cycle, no two ops race, no part is encoded twice, scratch and stages are within their bounds,
/// message ids are valid, and each message that they exchange with those peers has exactly one
/// partner of equal length. It also traces one output part of each of them back through all ranks
/// that it passed: it contains the contributions of the contract, each once, and nothing else.
/// Returns the number of parts that could be traced with the given number of ops.
///
/// Does not prove properties of all ranks together: that the other ranks do the same, progress
/// across ranks, equal bits.
int check_sample(const Schedule& schedule, std::span<const int> ranks, const SampleSize& size = {});

}  // namespace q7x2
