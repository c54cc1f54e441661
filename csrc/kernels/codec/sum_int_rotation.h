// Rotates numbers before they become integers that add (kernels/codec/sum_int.h).
//
// A rotation is linear, and all ranks use the same: the sum of rotated numbers, rotated back, is
// the sum of the numbers. After it no number is far larger than the others, so the steps of a group
// are smaller. Li et al., "THC: accelerating distributed deep learning using tensor homomorphic
// compression", 2024.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

/// Rotates each group in place. `shared_key`: equal on all ranks.
void rotate_groups(const ValueSpec& spec, float* values, size_t count, uint64_t shared_key);
/// The inverse of `rotate_groups`.
void rotate_groups_back(const ValueSpec& spec, float* values, size_t count, uint64_t shared_key);

}  // namespace q7x2
