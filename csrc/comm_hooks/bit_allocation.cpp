#include "comm_hooks/bit_allocation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace q7x2 {

std::vector<std::optional<size_t>> choose_codecs(const std::vector<GradientCosts>& gradients) {
  std::vector<std::vector<CodecCost>> relative;
  double budget = 0;
  for (const GradientCosts& gradient : gradients) {
    if (gradient.norm <= 0) continue;
    auto& choices = relative.emplace_back(gradient.choices);
    for (CodecCost& choice : choices) choice.error /= gradient.norm;
    budget += choices.front().error;
  }
  // Errors are rounded up to steps of the budget: the first choice of all must still fit.
  budget *= 1 + static_cast<double>(relative.size()) / static_cast<double>(kErrorSteps);
  auto allocated = allocate_bits(relative, budget);
  auto next = allocated.begin();
  std::vector<std::optional<size_t>> chosen;
  for (const GradientCosts& gradient : gradients) {
    chosen.push_back(gradient.norm > 0 ? std::optional(*next++) : std::nullopt);
  }
  return chosen;
}

std::vector<size_t> allocate_bits(const std::vector<std::vector<CodecCost>>& costs, double budget) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto steps_of = [budget](const CodecCost& cost) {
    if (cost.error <= 0) return size_t{0};
    const double steps = std::ceil(cost.error / budget * static_cast<double>(kErrorSteps));
    return steps <= static_cast<double>(kErrorSteps) ? static_cast<size_t>(steps) : kErrorSteps + 1;
  };
  // least[e]: of the gradients so far, with at most e steps of error.
  std::vector<double> least(kErrorSteps + 1, 0);
  std::vector<std::vector<uint8_t>> chosen;
  for (const auto& choices : costs) {
    std::vector<double> next(kErrorSteps + 1, kNever);
    std::vector<uint8_t>& choice_at = chosen.emplace_back(kErrorSteps + 1);
    for (size_t choice = 0; choice < choices.size(); ++choice) {
      const size_t steps = steps_of(choices[choice]);
      for (size_t e = steps; e <= kErrorSteps; ++e) {
        const double bytes = least[e - steps] + choices[choice].bytes;
        if (bytes < next[e]) {
          next[e] = bytes;
          choice_at[e] = static_cast<uint8_t>(choice);
        }
      }
    }
    least = std::move(next);
  }
  std::vector<size_t> result(costs.size());
  if (least[kErrorSteps] == kNever) {
    for (size_t i = 0; i < costs.size(); ++i) {
      const auto best = std::ranges::min_element(costs[i], {}, &CodecCost::error);
      result[i] = static_cast<size_t>(best - costs[i].begin());
    }
    return result;
  }
  size_t e = kErrorSteps;
  for (size_t i = costs.size(); i-- > 0;) {
    result[i] = chosen[i][e];
    e -= steps_of(costs[i][result[i]]);
  }
  return result;
}

}  // namespace q7x2
