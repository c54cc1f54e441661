// Slicing: cuts the caller's buffers into slices, and each slice into parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "executor/call/collective_call.h"
#include "plan/choose/choice.h"
#include "plan/ir/owner_ranges.h"

namespace q7x2 {

class Slicing {
 public:
  Slicing() = default;
  /// `call` and `choice` must outlive it.
  Slicing(const CollectiveCall& call, const Choice& choice);

  /// For flat, coded calls: cuts slices and parts so that all owners receive messages of about the
  /// same length. `counts`: see OwnerRanges.
  void balance(std::span<const int32_t> counts);

  size_t num_slices() const { return num_slices_; }
  /// Bytes of the longest region.
  size_t bytes() const { return bytes_; }
  size_t elements() const { return bytes_ / element_size(call_->dtype); }
  /// Number of elements in the longest part of a slice.
  size_t longest_part() const { return choice_->part_bytes / element_size(call_->dtype); }

  /// The input or output region that contains the block.
  const Region& whole(const Block& block) const {
    return (block.space == Space::kOutput ? call_->output
                                          : call_->input)[is_flat_ ? 0 : block.index];
  }
  /// The piece of a part that belongs to a slice.
  Region part(const Block& block, size_t slice) const;
  /// Coded calls: number of input elements before each region. The last entry counts all of them.
  std::span<const uint64_t> region_begins() const { return region_begins_; }
  uint64_t input_elements() const { return region_begins_.back(); }
  /// Coded calls: the input region at whose beginning the elements of a part are counted from 0. A
  /// reduction counts through all inputs, so that a part has the same index on all ranks. An
  /// all-gather counts within the part.
  size_t counted_region(const Block& block) const {
    return call_->collective == Collective::kReduceScatter ? block.index : 0;
  }
  /// The index of a part's first element in its region.
  size_t first_element(const Block& block, size_t slice) const;
  /// Coded calls: the index of a part's first element, as the codec counts elements.
  uint64_t first_of_all(const Block& block, size_t slice) const {
    return region_begins_[counted_region(block)] + first_element(block, slice);
  }
  /// Number of bytes of each region before a slice. If there is no such slice, the length of the
  /// longest region.
  size_t bytes_before(size_t slice) const;
  bool is_flat() const { return is_flat_; }

 private:
  /// The first element of a part in a flat buffer, and the one after its last.
  std::pair<size_t, size_t> flat_part(size_t slice, size_t part) const;

  const CollectiveCall* call_ = nullptr;
  const Choice* choice_ = nullptr;
  bool is_flat_ = false;
  int flat_shift_ = 0;  // log2 of the size of an element of a flat buffer in bytes
  size_t bytes_ = 0;
  size_t num_slices_ = 0;
  std::optional<OwnerRanges> ranges_;
  std::vector<uint64_t> region_begins_;
};

}  // namespace q7x2
