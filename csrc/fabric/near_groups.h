// Groups of hosts that are near each other: a message within a group takes clearly less time than
// one between groups, as with machines of two cities.
//
//   one-way times, sorted     40 us  45 us  52 us  90 us | 9.8 ms  10.1 ms  10.2 ms
//                                      near              |          far
//
// A gap in the times of all pings tells near from far: at least kTimes as long, and kLeast longer.
// Hosts are then grouped as racks are, but two groups join where a quarter of the pings between
// them are near: other work only makes a ping longer. So slow pings neither split a group nor make
// one, and a pair that is far although both hosts have near neighbours in common stays in their
// group. Of several gaps the one at the longest times counts that leaves more than one group, of
// which one has several hosts.
#pragma once

#include <cstddef>
#include <vector>

#include "fabric/measurements.h"

namespace q7x2 {

/// The group of each host, from 0 on in the order of the hosts; all 0 where there is one group.
std::vector<int> near_groups(size_t hosts, const std::vector<Measurements::Ping>& pings);

/// A ping between two groups.
struct FarPing {
  int a = 0;  ///< groups
  int b = 0;
  double alpha = 0;
};
/// How far each group is from a centre that all messages between groups pass: seconds that come on
/// top of `near` in the one-way times of pings between groups. Least squares over the medians of
/// each two groups, none of them negative.
std::vector<double> distances_from_centre(size_t groups, const std::vector<FarPing>& pings,
                                          double near);

}  // namespace q7x2
