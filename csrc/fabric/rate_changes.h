// RateChanges: a Fabric whose links have changed since it was measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "fabric/fabric.h"

namespace q7x2 {

/// By sending and receiving host: thousandths of the rate that was measured. -1: whatever the other
/// end.
using RateFactors = std::map<std::pair<int, int>, int64_t>;

/// `measured` with the rates of these links. Tuned times go where any has changed, because they
/// were measured before. Rates that are not known stay so. Throws Error(kInvalidArgument) where a
/// host is out of range.
Fabric with_rate_changes(const Fabric& measured, const RateFactors& factors);

/// What has changed from one to the other, for people: "host a sends at 20 % of its measured rate;
/// host b receives at its measured rate again".
std::string rate_changes_text(const Fabric& measured, const RateFactors& before,
                              const RateFactors& after);

}  // namespace q7x2
