// The order in which algorithms line up the ranks: neighbours are near.
#pragma once

#include <utility>
#include <vector>

#include "plan/schedule.h"

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
/// host once; by rank alone where nothing is known of the hosts. Equal on all ranks.
Order near_order(const ScheduleRequest& request);

/// The same walk begun at any rank: it, the others of its host, the others of its rack, the rest.
class NearOrders {
 public:
  explicit NearOrders(const ScheduleRequest& request);

  Order from(int first) const;

 private:
  Order near_;
  std::vector<std::pair<int, int>> sites_;  // by rank: its rack and host; empty: not known
};

/// One of those.
Order near_order_from(const ScheduleRequest& request, int first);

}  // namespace q7x2
