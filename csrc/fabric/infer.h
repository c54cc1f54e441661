// From what a probe measured to a Fabric.
//
// The hosts have talked in rounds, in each of them all hosts at once, in pairs and both ways:
//
// clang-format off
//   round 1   h0=h7  h1=h6  h2=h5  h3=h4    A host sends and receives one flow in a round, so its
//   round 2   h0=h6  h7=h5  h1=h4  h2=h3    NIC limits none of the others' flows. What they share
//   ...                                     is the cable between racks.
// clang-format on
//
// 1. A host's egress is the rate that most of its undisturbed flows reach: the median of those of
//    at least kSlow of its best. Its ingress likewise.
//    NICs whose rates differ by less than such measurements do are taken to be equally fast: the
//    planner looks for the slowest one, and would find the one that was measured worst. So are
//    cables, and links.
// 2. A flow's *ease* is its rate over what the two NICs allow. Hosts are grouped by average
//    linkage: the easiest pairs first, and two groups join where the average ease between them is
//    at least kSlow. One noisy flow neither joins two racks nor splits one.
// 3. Where more than one group is left they are racks. All flows that leave a rack in one round
//    share its cable, so their rates add up to the cable's, in each round in which they are slow;
//    its rate is the median of those sums.
//    Hosts that are near each other by latency (fabric/near_groups.h) are a rack as well, and racks
//    are never longer than such a group. What a message takes longer between two of them is divided
//    among both: the rack's alpha.
// 4. What NICs let pass at once is the upper quartile over all flows, if it is more than what a
//    receiver may find at once on any network.
// 5. Rates of cores are the medians over the hosts. A host whose cores differ clearly has its own.
//
// A cable is found where it carries less than kSlow of what its hosts send when they meet in pairs.
#pragma once

#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/measurements.h"

namespace q7x2 {

/// Throws Error(kInvalidArgument) where the measurements make no valid Fabric.
Fabric infer(const Measurements& measured);
/// The same if nothing but pings between hosts was measured: groups of near hosts and latencies.
/// Rates are assumed.
Fabric infer_latencies(const Measurements& measured);

/// Two hosts each, at most `most`, the slowest first: in one direction at least they reached less
/// than kSlow of what their NICs and the cables of their racks let each of them have, with all
/// others talking. Either the pair is slow, or something else disturbed it.
std::vector<std::pair<int, int>> slow_pairs(const Measurements& measured, size_t most);

}  // namespace q7x2
