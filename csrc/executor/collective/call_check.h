// What one rank can check of a collective call by itself, before anything is sent.
#pragma once

#include "executor/call/collective_call.h"

namespace q7x2 {

/// Throws Error(kInvalidArgument) where the call has not the regions that its collective needs, or
/// where what the rank keeps for itself has another length in the output than in the input, or
/// where the codec cannot be used on those edges alone. Other lengths are compared when messages
/// meet.
void check_call(const CollectiveCall& call, int rank, int world_size);

/// Whether a region of `input` overlaps one of `output`, apart from the one place where a
/// collective may run in place: the rank's own part, where it begins at the same address in both.
bool overlaps(const CollectiveCall& call, int rank);

}  // namespace q7x2
