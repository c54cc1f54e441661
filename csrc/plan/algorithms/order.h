// The order in which algorithms arrange the ranks: neighbours are near.
//
// Ranks are sorted by rack, host and NUMA node. If pairs of hosts differ, because one is slow or
// far or has a private link, the hosts are in the order of a short tour
// (plan/algorithms/host_tour.h). For algorithms that are not a row, hosts are swapped until those
// that exchange messages are near each other.
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

/// All ranks by rack, host and rank, so that a walk along them, and back to the first, enters and
/// leaves each rack and each host once; by rank alone if the hosts are unknown. Equal on all ranks.
Order near_order(const ScheduleRequest& request);

/// As the near order, with the hosts of each rack so that those with the same place in their racks
/// are near each other, the nearest ones first: a private link joins the first ones.
Order near_across_racks(const ScheduleRequest& request);

/// By how many ranks all ranks can be turned so that the near order stays a near order: the ranks
/// per rack, or the ranks per host on one switch. 0: racks or hosts have different numbers of
/// ranks, or the ranks are not in near order.
int near_turn(const ScheduleRequest& request);

/// The same walk without the step from the last rank to the first.
Order near_path(const ScheduleRequest& request);
/// The path that starts at `first`: it, the others of its host, the others of its rack, the rest.
Order near_path_from(const ScheduleRequest& request, int first);

/// Two positions of a row that send each other messages, each of this share of a slice.
struct Talk {
  int a = 0;
  int b = 0;
  double share = 1;
};

/// `order` with hosts of equal numbers of ranks swapped, as long as that shortens the distances of
/// `talks`. If `keeps_first`, the host of position 0 keeps its position. On a network whose hosts
/// are all alike this is `order`.
Order arranged(const ScheduleRequest& request, Order order, std::span<const Talk> talks,
               bool keeps_first = false);

/// For each rank all ranks, the near ones first: itself, the others of its host, the others of its
/// rack, the rest.
class NearOrders {
 public:
  explicit NearOrders(const ScheduleRequest& request);

  Order from(int first) const;

 private:
  Order near_;
  std::vector<std::pair<int, int>> sites_;  // by rank: its rack and host; empty: unknown
};

}  // namespace q7x2
