// The static checker: proves that the Plans of a whole group do what their contract promises.
#pragma once

#include <cstddef>
#include <span>

#include "plan/ir/plan.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// Proves of the Plans of all ranks, for data of any length and messages of any speed:
///
///   - contract: the output of every receiver is written, and no other rank's. Reductions hold the
///     contributions of at least `quorum` contributors, each exactly once, and nothing else; the
///     other collectives hold the contributors' data. Inputs of out-of-place collectives, and the
///     buffers of ranks that do not receive, are intact;
///   - messages: each send meets exactly one receive of equal length, and its id fits;
///   - progress: no deadlock, even where a send completes only when it is received, for any number
///     of slices and any windows;
///   - races: two ops that touch the same block, one of them writing, are ordered by dependencies
///     of this rank alone; so are two ops that touch the same residual;
///   - scratch: blocks are read only after they were written, with the length they were written;
///   - residuals: for a call with a codec, each result holds the residual of each of its
///     contributors exactly once, and a rank encodes each part of its input once at most;
///   - buffers: scratch blocks hold no more than kMaxScratchSlices allows; sends of one stage carry
///     the same bytes, so a window of slices stages at most window x stages blocks, whatever the
///     number of slices;
///   - means: every result of several contributors passes one final reduce, which holds them all;
///   - bits: all receivers of an all-reduce evaluate the same expression, and Plans that claim to
///     round once fold all contributions in one reduce, in rank order.
///
/// Throws Error(kInternal) that names the algorithm, the rank and the op. The time grows with the
/// number of ops of all ranks, and for each rank with the square of its ops.
void check_schedule(const Schedule& schedule);

/// The same of Plans: `plans[r]` is rank r's.
void check_plans(std::span<const Plan> plans, const Contract& contract);
/// The same, with what c10d promises for the collective as the contract.
void check_plans(std::span<const Plan> plans);

/// How much of a large Schedule is looked at.
struct SampleSize {
  size_t peers = 32;             ///< of each sampled rank, evenly spread over all that it talks to
  size_t ops = size_t{1} << 22;  ///< of the Plans that results are traced through
};

/// For Schedules that are too large to hold the Plans of all ranks: projects `ranks` and some of
/// their peers, and keeps a bounded number of Plans.
///
/// Proves of `ranks`: the blocks of their ops exist and may be used so, their DAGs have no cycle,
/// no two ops race, no part is encoded twice, scratch and stages are within their bounds, message
/// ids fit, and what they exchange with those peers meets exactly one partner of equal length. And
/// of one output part of each, traced back through all ranks that it passed: it holds the
/// contributions of the contract, each once, and nothing else. Returns how many parts there were
/// ops to trace.
///
/// Does not prove what takes all ranks together: that all others do the same, progress across
/// ranks, equal bits.
int check_sample(const Schedule& schedule, std::span<const int> ranks, const SampleSize& size = {});

}  // namespace q7x2
