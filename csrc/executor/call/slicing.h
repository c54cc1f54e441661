// Slicing: where the slices of a call, and the parts of a slice, lie in the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "executor/call/collective_call.h"
#include "plan/choose/planner.h"
#include "plan/ir/owner_ranges.h"

namespace q7x2 {

class Slicing {
 public:
  Slicing() = default;
  /// Both must stay.
  Slicing(const CollectiveCall& call, const Choice& choice);

  /// Flat, coded calls: cuts slices and parts so that what all ranks send is balanced. `counts`:
  /// see OwnerRanges.
  void balance(std::span<const int32_t> counts);
  bool is_balanced() const { return ranges_.has_value(); }

  size_t num_slices() const { return num_slices_; }
  /// Of the longest region.
  size_t bytes() const { return bytes_; }
  size_t elements() const { return bytes_ / element_size(call_->dtype); }
  /// The elements of the longest part of a slice.
  size_t longest_part() const { return choice_->part_bytes / element_size(call_->dtype); }

  /// The whole of a part of the input or output.
  const Region& whole(const Block& block) const {
    return (block.space == Space::kOutput ? call_->output
                                          : call_->input)[is_flat_ ? 0 : block.index];
  }
  /// The part's place in a slice.
  Region part(const Block& block, size_t slice) const;
  /// Coded calls: number of input elements before each region. The last entry counts all of them.
  std::span<const uint64_t> region_begins() const { return region_begins_; }
  uint64_t input_elements() const { return region_begins_.back(); }
  /// Coded calls: the input region from whose first element the elements of a part are counted. A
  /// reduction counts them through all inputs, so that a part has the same index on all ranks. A
  /// gather counts them within the part.
  size_t counted_region(const Block& block) const {
    return call_->collective == Collective::kReduceScatter ? block.index : 0;
  }
  /// The index of a part's first element in its region.
  size_t first_element(const Block& block, size_t slice) const;
  /// Coded calls: the index of a part's first element as the codec counts it.
  uint64_t first_of_all(const Block& block, size_t slice) const {
    return region_begins_[counted_region(block)] + first_element(block, slice);
  }
  /// The bytes of each region that lie before a slice, or before the end if there is no such slice.
  size_t bytes_before(size_t slice) const;
  bool is_flat() const { return is_flat_; }

 private:
  /// Where a part begins and ends in a flat buffer, in elements.
  std::pair<size_t, size_t> flat_part(size_t slice, size_t part) const;

  const CollectiveCall* call_ = nullptr;
  const Choice* choice_ = nullptr;
  bool is_flat_ = false;
  int flat_shift_ = 0;  // an element of a flat buffer has two to the power of that many bytes
  size_t bytes_ = 0;
  size_t num_slices_ = 0;
  std::optional<OwnerRanges> ranges_;
  std::vector<uint64_t> region_begins_;
};

}  // namespace q7x2
