// The hash by which messages show that their ranks make the same call (transport/ucx/tag.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/call/collective_call.h"

namespace q7x2 {

/// Of what all ranks must agree on; the choice for it follows from that (plan/choose/plan_cache.h).
/// Uneven parts are known to a pair of ranks only. Every rank knows all parts of an all-gather,
/// from its outputs, and of a reduce-scatter, from its inputs.
uint64_t fingerprint_of(const CollectiveCall& call);

/// Of a message of an uneven call, for a part of `bytes` bytes.
uint64_t fingerprint_of_part(uint64_t call, size_t bytes);

}  // namespace q7x2
