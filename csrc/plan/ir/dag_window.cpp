#include "plan/ir/dag_window.h"

#include <algorithm>

namespace q7x2 {

DagWindow::DagWindow(const Plan& plan, size_t num_slices, size_t window, Memory* memory)
    : plan_(&plan),
      num_slices_(num_slices),
      places_(std::min(std::max<size_t>(window, 1), num_slices), memory),
      waits_(places_.size() * plan.ops.size(), memory),
      ready_(memory) {
  ready_.reserve(plan.ops.size());
}

void DagWindow::admit() {
  const uint32_t index = place_of(next_slice_);
  const std::vector<Op>& ops = plan_->ops;
  places_[index] = {next_slice_++, static_cast<uint32_t>(ops.size())};
  uint32_t* const waits = waits_.data() + index * ops.size();
  for (uint32_t op = 0; op < ops.size(); ++op) {
    waits[op] = ops[op].num_dependencies;
    if (waits[op] == 0) ready_.push_back({index, op});
  }
  if (ops.empty()) ++done_;
}

bool DagWindow::complete(Step step, std::span<const uint32_t> successors) {
  uint32_t* const waits = waits_.data() + step.place * plan_->ops.size();
  for (const uint32_t next : successors) {
    if (--waits[next] == 0) ready_.push_back({step.place, next});
  }
  if (--places_[step.place].ops_left > 0) return false;
  while (done_ < next_slice_ && places_[place_of(done_)].ops_left == 0) ++done_;
  return true;
}

}  // namespace q7x2
