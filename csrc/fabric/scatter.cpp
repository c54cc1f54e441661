#include "fabric/scatter.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace q7x2 {
namespace {

// Two measurements of equal wires differ by up to so much.
constexpr double kEqualWires = 1.2;

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle),
                   values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (upper +
          *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle))) /
         2;
}

void even_out(std::vector<double*> rates) {
  std::erase_if(rates, [](const double* rate) { return *rate <= 0; });
  std::ranges::sort(rates, {}, [](const double* rate) { return *rate; });
  for (auto first = rates.begin(); first != rates.end();) {
    const double most = kEqualWires * **first;
    const auto last = std::find_if(first, rates.end(), [&](auto* rate) { return *rate > most; });
    std::vector<double> group;
    std::transform(first, last, std::back_inserter(group), [](auto* rate) { return *rate; });
    const double typical = median(std::move(group));
    for (; first != last; ++first) **first = typical;
  }
}

}  // namespace q7x2
