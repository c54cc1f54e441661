// Whose link is to blame if routes between hosts have other rates than they had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "ledger/rate_trends.h"

namespace q7x2 {

/// What the routes between hosts share, and what is expected of them.
struct Wiring {
  std::vector<int> rack_of;              ///< by host
  std::set<std::pair<int, int>> linked;  ///< sending and receiving host with a private link
  /// KiB per second of each route alone, by sending and receiving host; 0: not known. Empty: none
  /// is.
  std::vector<int64_t> promised;

  int64_t promise(int from, int to) const {
    const size_t at = static_cast<size_t>(from) * rack_of.size() + static_cast<size_t>(to);
    return at < promised.size() ? promised[at] : 0;
  }

  bool is_linked(int from, int to) const { return linked.contains({from, to}); }
};

/// The routes outside are blamed on
///
///   a private link   if it is the whole route
///   a host           if all that it sends and all that it receives has changed
///   a cable          of a rack, if all that leaves the rack and all that enters it has
///   one way          of a host or of a cable, if all of several routes that way have
///   all routes       between groups of hosts, if those that have changed part the hosts into such
///                    groups, and nothing else is to blame: a cable that the Fabric does not know
///   a route          else
///
/// Of several routes, all have changed if most are outside, and the rest differs by a fifth at
/// least: rates are noisy, and bands are wide. Of several hosts and cables, the one that explains
/// most routes comes first. {a, kAnyHost} is what host a sends, {kAnyHost, a} what it receives.
RateTrends::Ratios blame_links(std::vector<RateTrends::Ratio> routes, const Wiring& wiring);

}  // namespace q7x2
