// The shortest way past all hosts: a travelling salesman's tour, by bounded search.
//
//   h0 --- h1        h0 - h1 is slow, and so the tour is        0   1
//    | \  / |        h0 - h2 - h1 - h3 - h0: every hop is       | X |
//    |  \/  |        fast.                                      2   3
//    |  /\  |
//   h2 --- h3
//
// Among up to ten hosts the shortest tour is found by dynamic programming. Among more, some tours
// are improved: the given one, and greedy ones, which always go on to the nearest host that is
// left. 2-opt takes two hops out and turns the way between them round, as long as that shortens the
// tour; Or-opt moves one host elsewhere. Both look only at hops that are longer than the shortest
// one, and take a bounded number of steps. Of equally short tours the given one counts, so on a
// network whose hops are all alike it comes back. Held and Karp, "A dynamic programming approach to
// sequencing problems", 1962; Croes, "A method for solving traveling-salesman problems", 1958; Or,
// 1976.
#pragma once

#include <vector>

#include "plan/cost/host_distances.h"

namespace q7x2 {

/// Which hops of a row of hosts count.
enum class Tour {
  kClosed,    ///< also the one from the last host to the first
  kOpen,      ///< from the first host to the last
  kFromFirst  ///< the same, and the first host stays the first
};

/// The hosts of `given` in a short order.
std::vector<int> short_tour(const HostDistances& distances, std::vector<int> given, Tour kind);

}  // namespace q7x2
