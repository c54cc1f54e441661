// What the first rank of a host says of it in a probe.
#pragma once

#include "fabric/json.h"

namespace q7x2 {

/// Reads the hardware of this host and measures how fast one core copies, reduces and codes. Takes
/// some ten milliseconds.
HostDescription describe_host();

}  // namespace q7x2
