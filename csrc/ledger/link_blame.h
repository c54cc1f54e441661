// Finds the link that explains changed rates of routes between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "ledger/rate_trends.h"

namespace q7x2 {

/// The resources that routes between hosts share, and the expected rates.
struct Wiring {
  std::vector<int> rack_of;              ///< by host
  std::set<std::pair<int, int>> linked;  ///< sending and receiving host of each private link
  /// Rate of each route alone in KiB per second, by sending and receiving host; 0: unknown. Empty
  /// if all are unknown.
  std::vector<int64_t> promised;

  int64_t promise(int from, int to) const {
    const size_t at = static_cast<size_t>(from) * rack_of.size() + static_cast<size_t>(to);
    return at < promised.size() ? promised[at] : 0;
  }

  bool is_linked(int from, int to) const { return linked.contains({from, to}); }
};

/// The routes outside their bands are explained by
///
///   a private link   if it is the whole route
///   a host           if everything that it sends and everything that it receives has changed
///   a cable          of a rack, if everything that leaves the rack or enters it has changed
///   one direction    of a host or of a cable, if all of several routes in that direction have
///   all routes       between groups of hosts, if the changed routes divide the hosts into these
///                    groups, and nothing else explains them: a cable unknown to the Fabric
///   a route          otherwise
///
/// Several routes count as all changed if most are outside their bands, and the rest differs by at
/// least a fifth: rates are noisy, and bands are wide. Among several hosts and cables, the one that
/// explains most routes comes first. {a, kAnyHost} is what host a sends, {kAnyHost, a} what it
/// receives.
RateTrends::Ratios blame_links(std::vector<RateTrends::Ratio> routes, const Wiring& wiring);

/// All routes between hosts that have traffic, in both directions, if all of them are outside their
/// bands, and there are pairs of hosts without traffic. A cable that all of a ring crosses looks
/// so: a Plan that uses other routes shows whether these are faster.
RateTrends::Ratios blame_all_in_use(const std::vector<RateTrends::Ratio>& routes,
                                    const Wiring& wiring);

}  // namespace q7x2
