#include "plan/order.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "fabric/fabric.h"

namespace q7x2 {

std::vector<int> near_order(const PlanRequest& request) {
  if (request.fabric != nullptr) return request.fabric->near_order();
  std::vector<int> order(static_cast<size_t>(request.world_size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int> near_order_from(const PlanRequest& request, int first) {
  std::vector<int> order = near_order(request);
  std::rotate(order.begin(), order.begin() + index_in(order, first), order.end());
  if (request.fabric == nullptr) return order;
  const Fabric& fabric = *request.fabric;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const auto distance = [&](int rank) {
      return std::tuple(fabric.rack_of(rank) != fabric.rack_of(first),
                        !fabric.same_host(rank, first));
    };
    return distance(a) < distance(b);
  });
  return order;
}

int index_in(const std::vector<int>& order, int rank) {
  return static_cast<int>(std::find(order.begin(), order.end(), rank) - order.begin());
}

}  // namespace q7x2
