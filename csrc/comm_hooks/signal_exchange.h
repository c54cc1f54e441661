// A signal at work on one bucket.
#pragma once

#include "comm_hooks/compressor.h"
#include "comm_hooks/signal.h"

namespace q7x2 {

/// Makes `exchange.values` of the coded gradients: what is sent.
void emit(BucketExchange& exchange, const Signal& signal, SignalState& state);
/// What all ranks sent has been added up. `in_full`: the gradients were sent as they are.
void receive(const BucketExchange& exchange, const Signal& signal, SignalState& state,
             bool in_full);

}  // namespace q7x2
