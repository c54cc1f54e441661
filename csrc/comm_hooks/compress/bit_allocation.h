// Chooses a codec for each gradient: the fewest bytes without more error.
//
// Layers tolerate rounding differently. Given the bytes and the error of each codec on each
// gradient,
//
//   choose c(l) for all l  so that  sum bytes(l, c(l)) is least  and  sum error(l, c(l)) <= budget
//
// Errors are relative, |x - decoded|^2 / |x|^2, because a layer with small gradients needs its
// digits as much as any other. The budget is the total error of the first choice for all gradients.
// That is a knapsack problem. It is solved by dynamic programming over the error, in steps of
// budget / kErrorSteps, with each error rounded up. Somewhat larger budgets, by a part of what
// rounding wastes, are tried too. If the exact errors then exceed the real budget, single choices
// are changed until they fit, first those that save most error per byte. The result with the fewest
// bytes is taken.
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
  double error = 0;  ///< squared, so that errors of gradients add
};

struct GradientCosts {
  double norm = 0;                 ///< squared
  std::vector<CodecCost> choices;  ///< with absolute errors
};

/// The index of the chosen codec for each gradient; empty for a gradient of zeros, which gives no
/// information. The sum of the relative errors is at most that of the first choices.
std::vector<std::optional<size_t>> choose_codecs(const std::vector<GradientCosts>& gradients);

/// The index of the chosen codec for each gradient. `costs[gradient][choice]`; all gradients have
/// the same number of choices. If nothing fits into the budget, each gradient gets its least error.
std::vector<size_t> allocate_bits(const std::vector<std::vector<CodecCost>>& costs, double budget);

}  // namespace q7x2
