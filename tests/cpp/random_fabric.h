// Fabrics for property tests.
#pragma once

#include <cstdint>

#include "fabric/fabric.h"

namespace q7x2 {

/// Racks, hosts, ranks on hosts, rates and private links at random, the same for the same seed on
/// every platform. Some rates are unknown, some hosts and racks have one member only.
Fabric random_fabric(int ranks, uint64_t seed);

}  // namespace q7x2
