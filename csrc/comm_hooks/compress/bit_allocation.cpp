#include "comm_hooks/compress/bit_allocation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace q7x2 {

namespace {

using Costs = std::vector<std::vector<CodecCost>>;

/// The total cost of all gradients with these choices.
CodecCost sum_of(const Costs& costs, const std::vector<size_t>& choices) {
  CodecCost sum;
  for (size_t i = 0; i < costs.size(); ++i) {
    sum.bytes += costs[i][choices[i]].bytes;
    sum.error += costs[i][choices[i]].error;
  }
  return sum;
}

/// Makes the change that saves most error per byte, until the errors fit into the budget.
void fit(const Costs& costs, double budget, std::vector<size_t>& choices) {
  while (sum_of(costs, choices).error > budget) {
    double most = 0;
    size_t gradient = 0;
    size_t choice = 0;
    for (size_t i = 0; i < costs.size(); ++i) {
      const CodecCost& now = costs[i][choices[i]];
      for (size_t c = 0; c < costs[i].size(); ++c) {
        const double saved = now.error - costs[i][c].error;
        if (saved <= 0) continue;
        const double bytes = costs[i][c].bytes - now.bytes;
        const double gain = bytes > 0 ? saved / bytes : std::numeric_limits<double>::infinity();
        if (gain <= most) continue;
        most = gain;
        gradient = i;
        choice = c;
      }
    }
    if (most == 0) return;
    choices[gradient] = choice;
  }
}

}  // namespace

std::vector<std::optional<size_t>> choose_codecs(const std::vector<GradientCosts>& gradients) {
  Costs relative;
  double budget = 0;
  for (const GradientCosts& gradient : gradients) {
    if (gradient.norm <= 0) continue;
    auto& choices = relative.emplace_back(gradient.choices);
    for (CodecCost& choice : choices) choice.error /= gradient.norm;
    budget += choices.front().error;
  }
  // Rounding errors up to steps of the budget wastes up to one step per gradient. So larger budgets
  // are tried too, and afterwards single choices are changed until the errors fit.
  const double waste = static_cast<double>(relative.size()) / static_cast<double>(kErrorSteps);
  std::vector<size_t> allocated(relative.size(), 0);
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    std::vector<size_t> other = allocate_bits(relative, budget * (1 + share * waste));
    fit(relative, budget, other);
    const bool is_better = sum_of(relative, other).bytes < sum_of(relative, allocated).bytes;
    if (is_better) allocated = std::move(other);
  }
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
  // least[e]: the fewest bytes for the gradients so far, with at most e steps of error.
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
