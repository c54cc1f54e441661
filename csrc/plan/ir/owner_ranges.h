// OwnerRanges: slices and parts of an all-reduce, cut according to the positions of a selection.
//
//   elements sent    . . . . # # # . . . . . . . . .      #: many, .: few
//   equal parts      |   0   |   1   |   2   |   3   |    owner 1 receives nearly all
//   balanced parts   |   0   1 2 3   0   1   2   3   |    each receives its share
//
// Large elements of gradients cluster, and the owner of the cluster would receive, add and send
// most of the sum. So ranks count the elements that they selected in each granule of the tensor,
// add these counts, and derive the same cut from the sums. Slices stay consecutive runs. The parts
// of a slice follow each other, and part i of every slice belongs to owner i. A part takes granules
//
//   while it has less than `longest` elements, and its owner has less than min(lead + target, mean)
//   selected ones, or the next granule has no selected element.
//
// lead: the most selected elements that any owner had before this slice; mean: those of the tensor,
// per owner; target: somewhat more than a part of full length has on average. If an owner's parts
// had too few in one slice, they get more in the next, as in deficit round robin (Shreedhar and
// Varghese, 1995). So no owner ends with more than the mean and one granule, and no part is longer
// than usual. If the elements are spread evenly, all parts have the full length.
// Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", 2022 (Ok-Topk),
// has one range per owner instead of one per slice, and keeps it for some calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace q7x2 {

class OwnerRanges {
 public:
  /// `counts`: for each `granule` elements of the tensor, how many are sent, summed over all ranks.
  /// `longest`: elements of the longest part, at least one granule.
  OwnerRanges(std::span<const int32_t> counts, size_t granule, size_t elements, size_t parts,
              size_t longest);

  size_t num_slices() const { return (begins_.size() - 1) / parts_; }
  /// The first element of a part. The part ends where the next one begins; part number `parts` is
  /// the first part of the next slice.
  size_t begin(size_t slice, size_t part) const { return begins_[slice * parts_ + part]; }

 private:
  size_t parts_;
  std::vector<size_t> begins_;
};

/// Number of elements per granule, a power of two: small enough to cut parts well, and large enough
/// that counting a long tensor is fast. `longest`: elements of the longest part.
size_t granule_of(size_t elements, size_t longest);

}  // namespace q7x2
