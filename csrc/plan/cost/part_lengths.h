// How long the parts of a slice are, for those that plan without a buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "plan/cost/model.h"
#include "plan/ir/plan.h"

namespace q7x2 {

/// The bytes of each part in one slice.
class PartLengths {
 public:
  PartLengths(const Plan& plan, size_t slice_bytes) : blocked_(slice_bytes) {
    if (!is_flat(plan.collective)) return;
    const size_t element = std::min(model::kElementBytes, slice_bytes);
    const size_t elements = element == 0 ? 0 : slice_bytes / element;
    for (size_t part = 0; part < plan.part_weights.size(); ++part) {
      flat_.push_back((plan.part_begin(elements, part + 1) - plan.part_begin(elements, part)) *
                      element);
    }
  }

  /// Bytes of the part that gives an op its length.
  size_t of(const Op& op) const { return of(op.length_of.index); }
  bool are_equal() const {
    return std::ranges::all_of(flat_, [&](size_t bytes) { return bytes == flat_[0]; });
  }
  size_t of(size_t part) const { return flat_.empty() ? blocked_ : flat_[part]; }

 private:
  size_t blocked_;
  std::vector<size_t> flat_;
};

}  // namespace q7x2
