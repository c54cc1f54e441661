// The shortest path through all hosts: a travelling salesman's tour, by bounded search.
//
//   h0 --- h1        h0 - h1 is slow, so the tour is            0   1
//    | \  / |        h0 - h2 - h1 - h3 - h0: every hop is       | X |
//    |  \/  |        fast.                                      2   3
//    |  /\  |
//   h2 --- h3
//
// For up to ten hosts the shortest tour is found by dynamic programming. For more hosts, several
// tours are improved: the given one, and greedy ones, which always continue to the nearest
// remaining host. 2-opt removes two hops and reverses the path between them, as long as that
// shortens the tour; Or-opt moves one host elsewhere. Both consider only hops that are longer than
// the shortest one, and take a bounded number of steps. Among equally short tours the given one is
// preferred, so a network whose hops are all alike keeps its order.
// Held and Karp, "A dynamic programming approach to sequencing problems", 1962; Croes, "A method
// for solving traveling-salesman problems", 1958; Or, 1976.
#pragma once

#include <vector>

#include "plan/cost/host_distances.h"

namespace q7x2 {

/// Which hops of a row of hosts count.
enum class Tour {
  kClosed,    ///< also the hop from the last host to the first
  kOpen,      ///< the hops from the first host to the last
  kFromFirst  ///< as kOpen, but the first host stays first
};

/// The hosts of `given` in a short order.
std::vector<int> short_tour(const HostDistances& distances, std::vector<int> given, Tour kind);

}  // namespace q7x2
