#include "executor/slicing.h"

#include <algorithm>

namespace q7x2 {

Slicing::Slicing(const CollectiveCall& call, const Choice& choice)
    : call_(&call),
      choice_(&choice),
      is_flat_(q7x2::is_flat(call.collective)),
      flat_element_(is_reduction(call.collective) ? element_size(call.dtype) : 1),
      bytes_(call.bytes()),
      num_slices_((bytes_ + choice.slice_bytes - 1) / choice.slice_bytes) {
  if (call.uneven) num_slices_ = std::max<size_t>(num_slices_, 1);
}

void Slicing::balance(std::span<const int32_t> counts) {
  ranges_.emplace(counts, granule_of(elements(), longest_part()), elements(),
                  choice_->plan->part_weights.size(), longest_part());
  num_slices_ = ranges_->num_slices();
}

Region Slicing::part(const Block& block, size_t slice) const {
  const Region& all = whole(block);
  if (!is_flat_) {
    const size_t begin = slice * choice_->slice_bytes;
    return begin >= all.bytes
               ? Region{}
               : Region{all.data + begin, std::min(choice_->slice_bytes, all.bytes - begin)};
  }
  const size_t first = flat_begin(slice, block.index);
  const size_t last = flat_begin(slice, block.index + size_t{1});
  // A helper has lengths, but no buffer.
  std::byte* const begin = all.data == nullptr ? nullptr : all.data + first * flat_element_;
  return {begin, (last - first) * flat_element_};
}

size_t Slicing::flat_begin(size_t slice, size_t part) const {
  if (ranges_) return ranges_->begin(slice, part);
  const size_t begin = slice * choice_->slice_bytes;
  const size_t bytes = std::min(choice_->slice_bytes, bytes_ - begin);
  return begin / flat_element_ + choice_->plan->part_begin(bytes / flat_element_, part);
}

size_t Slicing::bytes_before(size_t slice) const {
  if (slice >= num_slices_) return bytes_;
  return is_flat_ ? flat_begin(slice, 0) * flat_element_ : slice * choice_->slice_bytes;
}

size_t Slicing::first_element(const Block& block, size_t slice) const {
  if (is_flat_) return flat_begin(slice, block.index);
  return slice * choice_->slice_bytes / element_size(call_->dtype);
}

}  // namespace q7x2
