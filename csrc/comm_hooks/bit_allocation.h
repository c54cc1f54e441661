// Which codec for which gradient: the fewest bytes for no more error.
//
// Layers bear rounding differently. Given what each codec would cost and lose on each gradient,
//
//   choose c(l) for all l  so that  sum bytes(l, c(l)) is least  and  sum error(l, c(l)) <= budget
//
// which is a knapsack. It is solved by dynamic programming over the error spent, in steps of
// budget / kErrorSteps, each choice rounded up, so that the budget holds for sure.
//   compute   gradients x choices x kErrorSteps
// Markov et al., "L-GreCo: layerwise-adaptive gradient compression for efficient data-parallel deep
// learning", 2024.
#pragma once

#include <cstddef>
#include <vector>

namespace q7x2 {

inline constexpr size_t kErrorSteps = 4096;

struct CodecCost {
  double bytes = 0;
  double error = 0;  ///< squared, so that those of gradients add
};

/// The position of the chosen codec for each gradient. `costs[gradient][choice]`; every gradient
/// has as many choices. Where nothing fits into the budget, each gradient has its least error.
std::vector<size_t> allocate_bits(const std::vector<std::vector<CodecCost>>& costs, double budget);

}  // namespace q7x2
