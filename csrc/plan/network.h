// The network as algorithms see it that draw their trees from the Fabric.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "plan/plan.h"
#include "plan/tree.h"

namespace q7x2 {

/// The request's Fabric; one rank a host behind one switch where nothing is known.
Fabric fabric_or_uniform(const PlanRequest& request);

/// Rates of the resources of `routes`, in bytes a second. Unknown ones are as fast as the fastest
/// known one.
std::vector<double> known_rates(const Routes& routes);

/// A tree of hosts as one of ranks: on each host `speaker[host]` takes its place, and the others
/// stand below it.
Tree tree_of_ranks(const Tree& hosts, const std::vector<int>& speaker, const Fabric& fabric);

/// All that the trees of a request depend on, as numbers.
std::vector<double> network_key(const PlanRequest& request);

/// The last few results of a function of a network_key. Every rank's Plan is made from the same
/// trees, and the simulator makes those of all ranks in turn. Thread-safe.
template <typename Value>
class RecentResults {
 public:
  template <typename Make>
  std::shared_ptr<const Value> get(const PlanRequest& request, Make make) {
    std::vector<double> key = network_key(request);
    const std::lock_guard lock(mutex_);
    for (const auto& [known, value] : results_) {
      if (known == key) return value;
    }
    auto value = std::make_shared<const Value>(make());
    results_.emplace_front(std::move(key), value);
    if (results_.size() > kMost) results_.pop_back();
    return value;
  }

 private:
  static constexpr size_t kMost = 8;

  std::mutex mutex_;
  std::deque<std::pair<std::vector<double>, std::shared_ptr<const Value>>> results_;
};

}  // namespace q7x2
