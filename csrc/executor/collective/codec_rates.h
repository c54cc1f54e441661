// What codecs cost: measured by the probe, kept in the Fabric, asked for by the planner.
#pragma once

#include <vector>

#include "base/types.h"
#include "fabric/fabric.h"
#include "kernels/codec/codec.h"
#include "plan/cost/prediction.h"

namespace q7x2 {

/// Encodes (errors kept) and decodes (adding) a block with a codec of each kind, on this core.
/// Takes a few milliseconds.
std::vector<Fabric::CodecRate> measure_codecs();

/// What the planner counts with for elements of `dtype`. A codec that was not measured counts like
/// the measured one of its kind, and where there is none, by its share of the copy rate. `host`:
/// whose rates count; -1: of each the slowest host's, since the others wait for it.
CodingCost coding_cost(const Codec& codec, DType dtype, const Fabric& fabric, int host = -1);

}  // namespace q7x2
