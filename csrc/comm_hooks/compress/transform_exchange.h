// A transform at work on one bucket.
#pragma once

#include "comm_hooks/compress/compressor.h"
#include "comm_hooks/compress/gradient_transform.h"

namespace q7x2 {

/// Makes `exchange.values` of the coded gradients: what is sent.
void emit(BucketExchange& exchange, const GradientTransform& transform, TransformState& state);
/// What all ranks sent has been added up. `in_full`: the gradients were sent as they are.
void receive(const BucketExchange& exchange, const GradientTransform& transform,
             TransformState& state, bool in_full);

/// The means of gradients that travelled whole become the values that `receive` works on.
void give_values(const BucketExchange& exchange);
/// What came out becomes the gradients, if there are values.
void take_values(const BucketExchange& exchange);

}  // namespace q7x2
