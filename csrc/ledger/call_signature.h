// The text that describes a collective in messages: "all_reduce (sequence 12, 4096 bytes of
// float32, sum)".
#pragma once

#include <string>
#include <string_view>

#include "ledger/flight_record.h"

namespace q7x2 {

/// Whether it is a collective that computes with the elements; its `reduce` says how.
bool is_reduced(const FlightRecord& record);

/// `title`: the user's name for it; empty: the collective's own name. `details`: text that the
/// record does not contain, such as ", codec int8". Empty parts are left out.
std::string call_signature(const FlightRecord& call, std::string_view title = {},
                           std::string_view details = {});

}  // namespace q7x2
