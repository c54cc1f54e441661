// RateChanges: a Fabric whose links and hosts have other rates than were measured.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "fabric/fabric.h"

namespace q7x2 {

/// By sending and receiving host: thousandths of the rate that was measured. -1: whatever the other
/// end. A host and itself: what its processor does.
using RateFactors = std::map<std::pair<int, int>, int64_t>;

/// `measured` with the rates of these links and hosts: a processor copies, adds up, encodes and
/// decodes with the factor. Tuned times go if any rate has changed, because they were measured
/// before. Rates that are not known stay so. Throws Error(kInvalidArgument) if a host is out of
/// range.
Fabric with_rate_changes(const Fabric& measured, const RateFactors& factors);

/// What has changed from one to the other, for people: "host a sends at 20 % of its measured rate;
/// host b computes at its measured rate again". `forgotten`: hosts whose processors count as
/// recovered because they had too little to do.
std::string rate_changes_text(const Fabric& measured, const RateFactors& before,
                              const RateFactors& after, const std::set<int>& forgotten = {});

}  // namespace q7x2
