// The order in which algorithms line up the ranks: neighbours are near.
//
// Ranks stand by rack, host and NUMA node. Where pairs of hosts differ, because one is slow or far
// or has a private link, the hosts stand in the order of a short tour
// (plan/algorithms/host_tour.h). For algorithms that are no row, hosts change places until those
// that talk are near each other.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "plan/ir/schedule.h"

namespace q7x2 {

/// Ranks in a row.
class Order {
 public:
  explicit Order(std::vector<int> ranks);

  int size() const { return static_cast<int>(ranks_.size()); }
  int at(int position) const { return ranks_[static_cast<size_t>(position)]; }
  int position_of(int rank) const { return positions_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
  std::vector<int> positions_;  // by rank; -1: not in the row
};

/// All ranks by rack, host and rank, so that a walk along them enters and leaves each rack and each
/// host once, and round again to the first; by rank alone where nothing is known of the hosts.
/// Equal on all ranks.
Order near_order(const ScheduleRequest& request);

/// By how many ranks all may be turned so that every walk from near to far stays one: the ranks of
/// a rack, or those of a host on one switch. 0: racks or hosts have different numbers of ranks, or
/// ranks do not stand in near order.
int near_turn(const ScheduleRequest& request);

/// The same walk one way, without the step from the last rank to the first.
Order near_path(const ScheduleRequest& request);
/// That begun at any rank: it, the others of its host, the others of its rack, the rest.
Order near_path_from(const ScheduleRequest& request, int first);

/// Two positions of a row that send each other messages, each with that share of a slice.
struct Talk {
  int a = 0;
  int b = 0;
  double share = 1;
};

/// `order` after hosts that have as many ranks have changed places, as long as that shortens the
/// way of what is said in `talks`. The host of position 0 keeps its place where `keeps_first`. On a
/// network whose hosts are all alike this is `order`.
Order arranged(const ScheduleRequest& request, Order order, std::span<const Talk> talks,
               bool keeps_first = false);

/// The ranks from each rank on, the near ones first: it, the others of its host, the others of its
/// rack, the rest.
class NearOrders {
 public:
  explicit NearOrders(const ScheduleRequest& request);

  Order from(int first) const;

 private:
  Order near_;
  std::vector<std::pair<int, int>> sites_;  // by rank: its rack and host; empty: not known
};

}  // namespace q7x2
