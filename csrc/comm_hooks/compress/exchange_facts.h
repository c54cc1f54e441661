// What policies learn of one bucket, and what they leave out of it.
#pragma once

#include <vector>

#include "comm_hooks/compress/compressor.h"

namespace q7x2 {

/// Makes `exchange.facts`: of the gradients that are compressed, and of those left out, if any.
/// Called when transforms have made what is sent, before residuals are added.
void measure_exchange(BucketExchange& exchange, const BucketExchange* left_out,
                      const HookContext& context, double scale);

/// The sums over the ranks are there. `left_out`: positions, as they were when it was measured.
void note_facts(const BucketExchange& exchange, const std::vector<size_t>& left_out,
                const HookContext& context);

/// Gradients that policies leave whole get their residuals and join `whole`. Skipped ones are added
/// to their residuals, without what is Inf or NaN in them, and their means are zeros.
void leave_out(const BucketExchange& left_out, const Decision& decision,
               std::vector<size_t>& whole);

}  // namespace q7x2
