// Which codec for which gradient: the fewest bytes for no more error.
//
// Layers bear rounding differently. Given what each codec would cost and lose on each gradient,
//
//   choose c(l) for all l  so that  sum bytes(l, c(l)) is least  and  sum error(l, c(l)) <= budget
//
// Errors are relative, |x - decoded|^2 / |x|^2, because a layer with small gradients needs its
// digits as much as any other. The budget is what the first choice would lose of all of them. That
// is a knapsack. It is solved by dynamic programming over the error spent, in steps of budget /
// kErrorSteps, each choice rounded up. Budgets that are larger by a part of what rounding wastes
// are tried too. If the exact errors then exceed the real budget, single choices are changed, those
// that save most error per byte first, until they fit. The fewest bytes count.
//   compute   gradients x choices x kErrorSteps
// Markov et al., "L-GreCo: layerwise-adaptive gradient compression for efficient data-parallel deep
// learning", 2024.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace q7x2 {

inline constexpr size_t kErrorSteps = 4096;

struct CodecCost {
  double bytes = 0;
  double error = 0;  ///< squared, so that those of gradients add
};

struct GradientCosts {
  double norm = 0;                 ///< squared
  std::vector<CodecCost> choices;  ///< with absolute errors
};

/// The position of the chosen codec for each gradient; none for a gradient of zeros, which does not
/// tell what it needs. The relative errors are together no more than those of the first choices.
std::vector<std::optional<size_t>> choose_codecs(const std::vector<GradientCosts>& gradients);

/// The position of the chosen codec for each gradient. `costs[gradient][choice]`; every gradient
/// has as many choices. Where nothing fits into the budget, each gradient has its least error.
std::vector<size_t> allocate_bits(const std::vector<std::vector<CodecCost>>& costs, double budget);

}  // namespace q7x2
