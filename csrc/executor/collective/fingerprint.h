// The hash in each message by which ranks detect that they make different calls
// (transport/ucx/tag.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/call/collective_call.h"

namespace q7x2 {

/// The hash of all that the ranks must agree on. The choice follows from that
/// (plan/choose/plan_cache.h). It does not cover the lengths of uneven parts, which only two ranks
/// know. It covers the parts of an all-gather, which every rank knows from its outputs, and those
/// of a reduce-scatter, which it knows from its inputs.
uint64_t fingerprint_of(const CollectiveCall& call);

/// The hash in a message of an uneven call, for a part of `bytes` bytes.
uint64_t fingerprint_of_part(uint64_t call, size_t bytes);

}  // namespace q7x2
