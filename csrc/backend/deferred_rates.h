// DeferredRates: has the calls of a group planned by rates that are measured in the background
// (executor/probe/background_probe.h).
//
// The first long call waits for them in the thread of its caller. Shorter calls take about as long
// at any rate. The order of a group's calls is the same on all ranks, and so is the first one that
// is planned by the rates.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "executor/call/collective_call.h"
#include "executor/probe/background_probe.h"
#include "plan/choose/plan_cache.h"
#include "transport/group/group.h"

namespace q7x2 {

class DeferredRates {
 public:
  /// `latencies`: the Fabric of the group, by which `plans` chooses so far.
  DeferredRates(std::shared_ptr<BackgroundProbe> probe, std::shared_ptr<const Fabric> latencies,
                std::shared_ptr<PlanCache> plans, std::shared_ptr<Group> group);

  /// To be called before each call is planned. Throws the error of the group.
  void before(const CollectiveCall& call);
  /// Waits. The group's Fabric with rates; if they will not be known, without. Throws the error of
  /// the group.
  std::shared_ptr<const Fabric> fabric();
  /// The same if it is known with rates, else null. Does not wait.
  std::shared_ptr<const Fabric> known() const;
  /// The group's calls are planned by another Fabric from now on.
  void drop();

 private:
  std::shared_ptr<const Fabric> with_rates_of(const std::shared_ptr<const Fabric>& measured) const;

  const std::shared_ptr<BackgroundProbe> probe_;
  const std::shared_ptr<const Fabric> latencies_;
  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<Group> group_;
  const size_t long_bytes_;  // least length of a long call
  std::mutex mutex_;
  bool is_over_ = false;  // `plans_` has the rates, or will not have them
};

}  // namespace q7x2
