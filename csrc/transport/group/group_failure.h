// Which ranks a rank tells that its group has failed, and what it says.
//
// A rank that fails a group, or hears of it for the first time, tells the ranks that it is
// connected to and its neighbours. The neighbours of rank r are r ± 1, r ± 2, r ± 4, ... around the
// ring of all ranks. So each rank opens at most 2 log2(n) connections for it, and the news arrives
// after log2(n) hops. In a group of up to 16 ranks all ranks are neighbours.
//
// Every survivor is told as long as a chain of living neighbours leads to it, since each of them
// passes the news on. Because r ± 1 are neighbours too, only a rank whose neighbours have *all*
// died can be cut off: with a tenth of 1,024 ranks dead, that happens to one rank in 10^19. Such a
// rank notices the deaths itself, by its own connections or its deadline.
#pragma once

#include <exception>
#include <vector>

#include "base/error.h"

namespace q7x2 {

class Membership;
struct Peer;

/// In increasing order, without `rank` itself. Symmetric: if `a` is a neighbour of `b`, `b` is a
/// neighbour of `a`.
std::vector<int> neighbours(int rank, int world_size);

/// The error that ends a group when this rank's own code has thrown `exception`.
Error failure_of(const Membership& members, const std::exception& exception);

/// The error that ends a group when `peer`, a member, has died, or was cut off because it was late.
Error death_of(const Membership& members, const Peer& peer);

}  // namespace q7x2
