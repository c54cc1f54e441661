// Which elements of a whole tensor are sent.
//
// topk  Exactly the k = ceil(ratio * count) elements of largest magnitude; of equal ones the first.
//       Magnitudes of floats have the order of their bits. A sample of the tensor gives an upper
//       and a lower bound between which the k-th largest is almost certainly. One pass counts the
//       elements above, and keeps those between, at most some percent; the k-th is found among
//       these (Floyd and Rivest, "Expected time bounds for selection", 1975). If the sample was
//       misleading, and for small tensors, three passes count the upper 11 bits, the middle 10 and
//       the lower 10 of all magnitudes that can still be the k-th (radix select). In both cases
//       the memory that it needs is bounded, and the result is the same.
// sampled  Uses the k-th largest of the sample as that of the tensor: it reads very little memory,
//       and sends approximately k elements (Lin et al., "Deep gradient compression", 2018).
// blocks  topk over the L2 norms of blocks of 256 elements.
//
// Zeros are never sent: if fewer than k elements are not zero, fewer are sent. Numbers that are not
// finite are all sent, even if they are more than k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/codec/codec_arguments.h"

namespace q7x2 {

/// ceil(ratio * count)
size_t selected_count(double ratio, size_t count);
/// Bits of the smallest magnitude that a threshold sends.
uint32_t threshold_bits(double value);

Selection select_largest(const ReadElements& read, size_t count, size_t k, uint64_t key);
Selection select_sampled(const ReadElements& read, size_t count, double ratio, uint64_t key);
Selection select_threshold(double value);
Selection select_blocks(const ReadElements& read, size_t count, double ratio, uint64_t key);

/// How many of each `granule` elements a selection sends, except for selections of blocks.
/// `granule` is a multiple of 64. Reads the tensor only if the selection has not gathered its
/// elements.
std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                    const Selection& selection, size_t granule);

}  // namespace q7x2
