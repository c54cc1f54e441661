// Rates of cores: how fast hosts copy, reduce, encode and decode.
#pragma once

#include <vector>

#include "fabric/measurements.h"

namespace q7x2 {

/// The rates of `fabric` become the medians over `hosts`, at least one. A host whose cores differ
/// clearly gets its own.
void set_core_rates(const std::vector<Measurements::Host>& hosts, Fabric& fabric);

}  // namespace q7x2
