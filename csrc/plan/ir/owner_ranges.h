// OwnerRanges: slices and parts of an all-reduce cut by where a selection's elements lie.
//
//   elements sent    . . . . # # # . . . . . . . . .      #: many, .: few
//   equal parts      |   0   |   1   |   2   |   3   |    owner 1 receives nearly all
//   balanced parts   |   0   1 2 3   0   1   2   3   |    each receives its share
//
// Large elements of gradients cluster, and whoever owns the cluster would receive, add and send
// most of the sum. So ranks count what they selected in each granule of the tensor, add these
// counts, and all derive the same cut from the sums. Slices stay consecutive runs, the parts of one
// behind another, part i of every slice belonging to owner i; a part takes granules
//
//   while it has less than `longest` elements, and its owner less than min(lead + target, mean)
//   selected ones, or the next granule has none.
//
// lead: the most that any owner had before this slice; mean: of the tensor, for each owner; target:
// somewhat more than parts of the full length have in the mean. What an owner's parts lacked in one
// slice they get in the next, as in deficit round robin (Shreedhar and Varghese, 1995). So no owner
// ends with more than the mean and a granule, no part is longer than others' would be, and where
// the elements lie evenly all parts have the full length.
// Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", 2022 (Ok-Topk),
// has one range an owner in place of one in each slice, and keeps it for some calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace q7x2 {

class OwnerRanges {
 public:
  /// `counts`: of each `granule` elements of the tensor how many are sent, over all ranks.
  /// `longest`: of a part, a granule at least.
  OwnerRanges(std::span<const int32_t> counts, size_t granule, size_t elements, size_t parts,
              size_t longest);

  size_t num_slices() const { return (begins_.size() - 1) / parts_; }
  /// The first element of a part; it ends where the next one begins, part `parts` being the next
  /// slice's first.
  size_t begin(size_t slice, size_t part) const { return begins_[slice * parts_ + part]; }

 private:
  size_t parts_;
  std::vector<size_t> begins_;
};

/// The elements of a granule, a power of two: few enough that parts can be cut well, and not so few
/// that the counts of a long tensor take time. `longest`: of a part.
size_t granule_of(size_t elements, size_t longest);

}  // namespace q7x2
