#include "plan/order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "fabric/fabric.h"

namespace q7x2 {

Order::Order(std::vector<int> ranks) : ranks_(std::move(ranks)) {
  if (ranks_.empty()) return;
  positions_.resize(static_cast<size_t>(*std::ranges::max_element(ranks_)) + 1, -1);
  for (int position = 0; position < size(); ++position)
    positions_[static_cast<size_t>(at(position))] = position;
}

Order near_order(const ScheduleRequest& request) {
  if (request.fabric != nullptr) return Order(request.fabric->near_order());
  std::vector<int> ranks(static_cast<size_t>(request.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Order(std::move(ranks));
}

NearOrders::NearOrders(const ScheduleRequest& request) : near_(near_order(request)) {
  if (request.fabric == nullptr) return;
  for (int rank = 0; rank < request.world_size; ++rank) {
    sites_.emplace_back(request.fabric->rack_of(rank),
                        request.fabric->host_of[static_cast<size_t>(rank)]);
  }
}

Order NearOrders::from(int first) const {
  std::vector<int> ranks = near_.ranks();
  std::rotate(ranks.begin(), ranks.begin() + near_.position_of(first), ranks.end());
  if (sites_.empty()) return Order(std::move(ranks));
  const auto [rack, host] = sites_[static_cast<size_t>(first)];
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    const auto distance = [&](int rank) {
      const auto& [its_rack, its_host] = sites_[static_cast<size_t>(rank)];
      return std::pair(its_rack != rack, its_host != host);
    };
    return distance(a) < distance(b);
  });
  return Order(std::move(ranks));
}

Order near_order_from(const ScheduleRequest& request, int first) {
  return NearOrders(request).from(first);
}

}  // namespace q7x2
