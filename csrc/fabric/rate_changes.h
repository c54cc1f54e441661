// RateChanges: a Fabric whose links and hosts have other rates than were measured.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/rated_resource.h"
#include "fabric/fabric.h"

namespace q7x2 {

/// Thousandths of the rate that was measured.
using RateFactors = std::map<RatedResource, int64_t>;

/// `measured` with the rates of these resources. Exactly the resource of each factor changes:
///
///   what a host sends or receives    `egress` or `ingress` of the host
///   a route between two hosts        `solo` of the pair: the rate that Routes promises, scaled
///   a private link                   `rate` of the link, by the slower of its two directions. One
///                                    that is not faster than the shared network any more goes
///   a cable of a rack                `up` or `down` of the rack
///   a processor                      copies, adds up, encodes and decodes with the factor
///
/// Tuned times go if any rate has changed, because they were measured before. Rates that are not
/// known stay so. Throws Error(kInvalidArgument) if a host or a rack is out of range, or if there
/// is no such link.
Fabric with_rate_changes(const Fabric& measured, const RateFactors& factors);

/// What has changed from one to the other, for people: "host a sends at 20 % of its measured rate;
/// host b computes at its measured rate again". `forgotten`: resources that count as recovered
/// because too little was known of them.
std::string rate_changes_text(const Fabric& measured, const RateFactors& before,
                              const RateFactors& after,
                              const std::set<RatedResource>& forgotten = {});

}  // namespace q7x2
