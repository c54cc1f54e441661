#include "plan/cost/loads.h"

#include <algorithm>
#include <numeric>

namespace q7x2 {

namespace {

/// The length of each part, and of a scratch block, in units of B.
struct Lengths {
  explicit Lengths(const Plan& plan) {
    const auto total = std::accumulate(plan.part_weights.begin(), plan.part_weights.end(), 0.0);
    for (const uint32_t weight : plan.part_weights) parts.push_back(weight / total);
    if (!parts.empty()) scratch = *std::ranges::max_element(parts);
  }
  double of(const Block& part) const { return parts.empty() ? 1 : parts[part.index]; }

  std::vector<double> parts;  ///< empty: all of length 1
  double scratch = 1;
};

}  // namespace

Loads measure_loads(std::span<const Plan> plans, const Routes* routes) {
  Loads loads;
  loads.sent.resize(plans.size());
  loads.received.resize(plans.size());
  if (routes != nullptr) loads.resources.resize(routes->resources().size());
  for (const Plan& plan : plans) {
    const Lengths lengths(plan);
    loads.scratch.push_back((plan.num_scratch + plan.num_coded) * lengths.scratch);
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kSend) continue;
      const double bytes = lengths.of(op.length_of);
      loads.sent[static_cast<size_t>(plan.rank)] += bytes;
      loads.received[static_cast<size_t>(op.peer)] += bytes;
      if (routes == nullptr) continue;
      for (const int resource : routes->between(plan.rank, op.peer).resources) {
        loads.resources[static_cast<size_t>(resource)] += bytes;
      }
    }
  }
  return loads;
}

}  // namespace q7x2
