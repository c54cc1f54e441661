// Checks of a collective call that a rank makes by itself, before anything is sent.
#pragma once

#include "executor/call/collective_call.h"

namespace q7x2 {

/// Throws Error(kInvalidArgument) if the call does not have the regions that its collective needs,
/// if the rank's own part has different lengths in input and output, or if the codec cannot be used
/// on the requested edges only. Other lengths are compared when messages arrive.
void check_call(const CollectiveCall& call, int rank, int world_size);

/// Whether an input region overlaps an output region. One overlap is allowed and does not count:
/// the rank's own part may begin at the same address in both, because a collective may run in
/// place.
bool overlaps(const CollectiveCall& call, int rank);

}  // namespace q7x2
