#include "backend/deferred_rates.h"

#include <optional>
#include <utility>

#include "transport/run/runtime.h"

namespace q7x2 {
DeferredRates::DeferredRates(std::shared_ptr<BackgroundProbe> probe,
                             std::shared_ptr<const Fabric> latencies,
                             std::shared_ptr<PlanCache> plans, std::shared_ptr<Group> group)
    : probe_(std::move(probe)),
      latencies_(std::move(latencies)),
      plans_(std::move(plans)),
      group_(std::move(group)),
      long_bytes_(least_long_call(*latencies_)) {}

// Whoever makes a call at the same time in another thread waits, too, if its call is long.
void DeferredRates::before(const CollectiveCall& call) {
  if (!call.uneven && call.bytes() < long_bytes_) return;
  Runtime::run_unlocked([this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return;
    std::shared_ptr<const Fabric> fabric = this->fabric();
    if (!fabric->awaits_rates()) plans_->set_fabric(std::move(fabric));
    is_over_ = true;
  });
}

std::shared_ptr<const Fabric> DeferredRates::fabric() {
  std::shared_ptr<const Fabric> fabric;
  Runtime::run_unlocked([&] {
    fabric = with_rates_of(probe_->wait([this] {
      group_->check();
      Runtime::check_interrupt();
    }));
  });
  return fabric ? fabric : latencies_;
}

std::shared_ptr<const Fabric> DeferredRates::known() const {
  return with_rates_of(probe_->found());
}

void DeferredRates::drop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_over_ = true;
}

std::shared_ptr<const Fabric> DeferredRates::with_rates_of(
    const std::shared_ptr<const Fabric>& measured) const {
  if (!measured) return nullptr;
  std::optional<Fabric> fabric = with_rates(*latencies_, *measured);
  return fabric ? std::make_shared<const Fabric>(std::move(*fabric)) : nullptr;
}

}  // namespace q7x2
