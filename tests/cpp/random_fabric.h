// Fabrics for property tests.
#pragma once

#include <cstdint>

#include "fabric/fabric.h"

namespace q7x2 {

/// Random racks, hosts, ranks on hosts, rates and private links; the same for the same seed on
/// every platform. Some rates are unknown, and some hosts and racks have only one member.
Fabric random_fabric(int ranks, uint64_t seed);

}  // namespace q7x2
