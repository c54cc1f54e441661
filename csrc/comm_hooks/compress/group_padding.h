// Puts several gradients into one message, although a codec's groups could cross their boundaries.
//
// A codec cuts a message into groups of elements that share a scale. Each gradient begins with a
// new group, and the rest of its last group is padding:
//
//   message | a a a a | a a . . | b b b b | b b b . | c c      groups of 4; '.' is padding
//
// So no group has elements of two gradients, as if each had its own message, and a bucket still
// takes one collective. The reader drops the padding. Its elements have residuals, which are zeros
// between steps.
//
// Zeros do not change most scales: the largest magnitude, the L2 norm. But they change the mean
// magnitude of 1-bit codecs, and the range of minmax ones. For these codecs the elements of the
// last group are repeated instead, with their residuals.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

/// Number of elements from the start of a gradient of `numel` elements to the start of the next
/// one: whole groups.
int64_t padded_numel(const ValueSpec& value, int64_t numel);

/// Whether padding must repeat elements so that the scale does not change.
bool repeats_padding(const ValueSpec& value);

/// `room` contains one gradient of `numel` elements, followed by its padding. Writes the padding in
/// the way that `repeats_padding` says.
void fill_padding(const ValueSpec& value, const at::Tensor& room, int64_t numel);

}  // namespace q7x2
