// What policies are told about one bucket, and which gradients they leave out of it.
#pragma once

#include <vector>

#include "comm_hooks/compress/compressor.h"

namespace q7x2 {

/// Computes `exchange.facts` for the gradients that are compressed, and for those left out, if any.
/// To be called when transforms have computed what is sent, before residuals are added.
void measure_exchange(BucketExchange& exchange, const BucketExchange* left_out,
                      const HookContext& context, double scale);

/// To be called when the facts are summed over the ranks. `left_out`: indices, as when they were
/// measured.
void note_facts(const BucketExchange& exchange, const std::vector<size_t>& left_out,
                const HookContext& context);

/// Gradients that policies send whole get their residuals and join `whole`. Skipped ones are added
/// to their residuals, except for Inf and NaN, and their means become zeros.
void leave_out(const BucketExchange& left_out, const Decision& decision,
               std::vector<size_t>& whole);

}  // namespace q7x2
