// Whose link is to blame if routes between hosts have other rates than they had.
#pragma once

#include <vector>

#include "ledger/rate_trends.h"

namespace q7x2 {

/// The other end of a link, whatever it is.
inline constexpr int kAnyHost = -1;

/// The routes outside are blamed on
///
///   a host     if all that it sends and all that it receives is outside
///   one way    of a host, if all of several routes out of it, or into it, are outside
///   a route    else
///
/// {a, kAnyHost} is what a sends, {kAnyHost, a} what it receives.
RateTrends::Ratios blame_links(std::vector<RateTrends::Ratio> routes, int hosts);

}  // namespace q7x2
