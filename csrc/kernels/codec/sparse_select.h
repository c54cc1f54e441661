// Which elements of a whole tensor are sent.
//
// topk  Exactly the k = ceil(ratio * count) elements of largest magnitude, the first of equals.
//       Magnitudes of floats are in the order of their bits. A sample of the tensor gives an upper
//       and a lower bound between which the k-th largest lies almost certainly; one pass counts
//       what is above, and keeps what is between, some percent at most; the k-th is found among
//       those (Floyd and Rivest, "Expected time bounds for selection", 1975). Where the sample
//       misled, and for small tensors, three passes count the upper 11 bits, the middle 10 and the
//       lower 10 of all magnitudes that can still be the k-th (radix select). Either way the memory
//       that it needs is bounded, and the result is the same.
// sampled  Takes the k-th largest of the sample for that of the tensor: next to no memory is read,
//       and about as many elements are sent (Lin et al., "Deep gradient compression", 2018).
// blocks  topk over the L2 norms of blocks of 256 elements.
//
// Zeros are never worth sending: fewer than k are, where fewer are not zero. Numbers that are not
// finite all are, even if they are more than k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/codec/codec_arguments.h"

namespace q7x2 {

/// ceil(ratio * count)
size_t selected_count(double ratio, size_t count);
/// Bits of the least magnitude that a threshold sends.
uint32_t threshold_bits(double value);

Selection select_largest(const ReadElements& read, size_t count, size_t k, uint64_t key);
Selection select_sampled(const ReadElements& read, size_t count, double ratio, uint64_t key);
Selection select_threshold(double value);
Selection select_blocks(const ReadElements& read, size_t count, double ratio, uint64_t key);

/// How many of each `granule` elements a selection sends, which is not one of blocks; `granule` is
/// a multiple of 64. Reads the tensor only where the selection has not gathered its elements.
std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                    const Selection& selection, size_t granule);

}  // namespace q7x2
