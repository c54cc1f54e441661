#include "executor/call/slicing.h"

#include <algorithm>
#include <bit>

namespace q7x2 {
namespace {

/// Borders of parts are rounded up to a multiple of this many elements. Parts of a coded call begin
/// with a group of elements that share a scale, so that no group belongs to two parts. This
/// requires that the parts of a whole slice begin with a group anyway: then rounding makes no part
/// of a shorter slice longer than those.
size_t group_of(const CollectiveCall& call, const Choice& choice) {
  if (!call.coding || call.coding.codec->spec().select != SelectKind::kAll) return 1;
  const auto group = std::max<size_t>(call.coding.codec->spec().value.group, 1);
  const size_t unit =
      choice.slice_bytes / element_size(call.dtype) / choice.plan->part_prefix.back();
  return unit % group == 0 ? group : 1;
}

}  // namespace

Slicing::Slicing(const CollectiveCall& call, const Choice& choice)
    : call_(&call),
      choice_(&choice),
      is_flat_(q7x2::is_flat(call.collective)),
      flat_shift_(is_reduction(call.collective) ? std::countr_zero(element_size(call.dtype)) : 0),
      bytes_(call.bytes()),
      num_slices_((bytes_ + choice.slice_bytes - 1) / choice.slice_bytes) {
  if (call.uneven) num_slices_ = std::max<size_t>(num_slices_, 1);
  if (!call.coding) return;
  region_begins_.push_back(0);
  for (const Region& region : call.input) {
    region_begins_.push_back(region_begins_.back() + region.bytes / element_size(call.dtype));
  }
}

void Slicing::balance(std::span<const int32_t> counts) {
  ranges_.emplace(counts, granule_of(elements(), longest_part()), elements(),
                  choice_->plan->part_weights.size(), longest_part());
  num_slices_ = ranges_->num_slices();
}

inline std::pair<size_t, size_t> Slicing::flat_part(size_t slice, size_t part) const {
  if (ranges_) return {ranges_->begin(slice, part), ranges_->begin(slice, part + 1)};
  const Plan& plan = *choice_->plan;
  const size_t begin = slice * choice_->slice_bytes;
  const size_t elements = std::min(choice_->slice_bytes, bytes_ - begin) >> flat_shift_;
  const size_t before = begin >> flat_shift_;
  const size_t group = group_of(*call_, *choice_);
  const auto border = [&](size_t of) {
    const size_t at = plan.part_begin(elements, of);
    return group == 1 ? at : std::min((at + group - 1) / group * group, elements);
  };
  return {before + border(part), before + border(part + 1)};
}

Region Slicing::part(const Block& block, size_t slice) const {
  const Region& all = whole(block);
  if (!is_flat_) {
    const size_t begin = slice * choice_->slice_bytes;
    return begin >= all.bytes
               ? Region{}
               : Region{all.data + begin, std::min(choice_->slice_bytes, all.bytes - begin)};
  }
  const auto [first, last] = flat_part(slice, block.index);
  // A helper (see Plan::helpers) knows the lengths, but has no buffer.
  std::byte* const begin = all.data == nullptr ? nullptr : all.data + (first << flat_shift_);
  return {begin, (last - first) << flat_shift_};
}

size_t Slicing::bytes_before(size_t slice) const {
  if (slice >= num_slices_) return bytes_;
  return is_flat_ ? flat_part(slice, 0).first << flat_shift_ : slice * choice_->slice_bytes;
}

size_t Slicing::first_element(const Block& block, size_t slice) const {
  if (is_flat_) return flat_part(slice, block.index).first;
  return slice * choice_->slice_bytes / element_size(call_->dtype);
}

}  // namespace q7x2
