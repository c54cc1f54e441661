// The rates of codecs: the probe measures them, the Fabric stores them, and the planner uses them.
#pragma once

#include <vector>

#include "base/types.h"
#include "fabric/fabric.h"
#include "kernels/codec/codec.h"
#include "plan/cost/prediction.h"

namespace q7x2 {

/// Measures a codec of each kind on this core: encodes a block and keeps the errors, and decodes it
/// and adds. Takes a few milliseconds.
std::vector<Fabric::CodecRate> measure_codecs();

/// The cost of coding elements of `dtype`, for the planner. A codec that was not measured has the
/// rates of the measured codec of its kind, or, if there is none, a share of the copy rate. `host`:
/// the host whose rates count; -1: each rate is that of the slowest host, because the others wait
/// for it.
CodingCost coding_cost(const Codec& codec, DType dtype, const Fabric& fabric, int host = -1);

}  // namespace q7x2
