// What a collective was, for messages: "all_reduce (sequence 12, 4096 bytes of float32, sum)".
#pragma once

#include <string>
#include <string_view>

#include "ledger/flight_record.h"

namespace q7x2 {

/// `title`: what the user calls it; empty: the collective's own name. Empty parts are left out.
std::string call_signature(const FlightRecord& call, std::string_view title = {});

}  // namespace q7x2
