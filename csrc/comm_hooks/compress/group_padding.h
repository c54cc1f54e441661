// Gradients that share a message, although a codec's groups would reach from one to the next.
//
// A codec cuts a message into groups of elements that share a scale. Each gradient begins with a
// group, and what is left of its last group is padding:
//
//   message | a a a a | a a . . | b b b b | b b b . | c c      groups of 4; '.' is padding
//
// So no group has elements of two gradients, as if each had a message of its own, and a bucket
// still takes one collective. Padding is dropped where the message is read. Its elements have
// residuals, which are zeros between steps.
//
// Zeros do not change most scales: the largest magnitude, the L2 norm. They do change the mean
// magnitude of 1-bit codecs, and the range of minmax ones. There the elements of the last group are
// repeated instead, with their residuals.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "kernels/codec/codec_spec.h"

namespace q7x2 {

/// The elements from the beginning of a gradient of `numel` elements to that of the next one: whole
/// groups.
int64_t padded_numel(const ValueSpec& value, int64_t numel);

/// Whether padding must repeat elements, to leave the scale as it is.
bool repeats_padding(const ValueSpec& value);

/// `room` holds one gradient of `numel` elements, and its padding: writes that, as
/// `repeats_padding` says.
void fill_padding(const ValueSpec& value, const at::Tensor& room, int64_t numel);

}  // namespace q7x2
