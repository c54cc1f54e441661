#include "fabric/linkage.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace q7x2 {

HostPair unordered(int a, int b) {
  return {std::min(a, b), std::max(a, b)};
}

Linkage::Linkage(size_t hosts) : group_(hosts) {
  std::iota(group_.begin(), group_.end(), 0);
}

void Linkage::add(int a, int b, double ease) {
  Between& between = between_[unordered(a, b)];
  between.sum += ease;
  ++between.count;
}

std::vector<int> Linkage::joined(double least) {
  std::vector<std::pair<double, HostPair>> order;
  for (const auto& [pair, between] : between_) order.emplace_back(between.average(), pair);
  std::sort(order.begin(), order.end(), std::greater<>());
  for (const auto& [ease, pair] : order) {
    const int a = group_[static_cast<size_t>(pair.first)];
    const int b = group_[static_cast<size_t>(pair.second)];
    if (a != b && between_.at(unordered(a, b)).average() >= least) join(a, b);
  }
  return group_;
}

void Linkage::join(int kept, int gone) {
  std::replace(group_.begin(), group_.end(), gone, kept);
  between_.erase(unordered(kept, gone));
  std::vector<std::pair<int, Between>> moved;
  for (auto it = between_.begin(); it != between_.end();) {
    const auto [a, b] = it->first;
    if (a == gone || b == gone) {
      moved.emplace_back(a == gone ? b : a, it->second);
      it = between_.erase(it);
    } else {
      ++it;
    }
  }
  for (const auto& [other, between] : moved) {
    Between& sum = between_[unordered(kept, other)];
    sum.sum += between.sum;
    sum.count += between.count;
  }
}

}  // namespace q7x2
