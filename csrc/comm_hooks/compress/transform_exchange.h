// Applies a transform to one bucket.
#pragma once

#include "comm_hooks/compress/compressor.h"
#include "comm_hooks/compress/gradient_transform.h"

namespace q7x2 {

/// Computes `exchange.values`, which are sent, from the coded gradients.
void emit(BucketExchange& exchange, const GradientTransform& transform, TransformState& state);
/// To be called when the sum over all ranks is known. `in_full`: the gradients themselves were
/// sent.
void receive(const BucketExchange& exchange, const GradientTransform& transform,
             TransformState& state, bool in_full);

/// Copies the means of gradients that were sent whole to the values that `receive` uses.
void give_values(const BucketExchange& exchange);
/// Copies the results to the gradients, if there are values.
void take_values(const BucketExchange& exchange);

}  // namespace q7x2
