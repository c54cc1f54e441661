// A snapshot of the flight recorder as JSON.
//
// The layout is that of PyTorch's flight recorder (`dump_fr_trace_json`, version 2.10): the same
// keys with the same meanings. Values for which PyTorch has no key are in "q7x2", once for the
// process and once per entry. Times are nanoseconds since 1970 by the clock of this host.
#pragma once

#include <string>

#include "ledger/flight_recorder.h"

namespace q7x2 {

/// One entry per line.
std::string to_json(const FlightSnapshot& snapshot);

}  // namespace q7x2
