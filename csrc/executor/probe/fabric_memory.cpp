#include "executor/probe/fabric_memory.h"

#include "fabric/catalogue.h"
#include "fabric/doubt.h"

namespace q7x2 {

FabricMemory& FabricMemory::instance() {
  static FabricMemory memory;
  return memory;
}

std::optional<Fabric> FabricMemory::find(
    const std::function<std::optional<Fabric>(const Fabric&)>& accept) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& fabric : fabrics_) {
    if (auto found = accept(*fabric)) return found;
  }
  return std::nullopt;
}

void FabricMemory::keep(const std::shared_ptr<const Fabric>& fabric) {
  const std::lock_guard<std::mutex> lock(mutex_);
  push(fabric);
}

void FabricMemory::learn(const Fabric& measured) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bool known = false;
  for (auto& fabric : fabrics_) {
    if (!fabric->same_hosts(measured)) continue;
    known = true;
    auto wiser = std::make_shared<Fabric>(*fabric);
    wiser->learn(measured.tuned);
    fabric = std::move(wiser);
  }
  if (!known) push(std::make_shared<const Fabric>(measured));
}

void FabricMemory::push(const std::shared_ptr<const Fabric>& fabric) {
  constexpr size_t kMost = 8;
  fabrics_.push_front(fabric);
  if (fabrics_.size() > kMost) fabrics_.pop_back();
}

bool sufficient(const Fabric& fabric) {
  if (fabric.awaits_rates()) return false;
  const bool several_hosts = fabric.hosts.size() > 1;
  const bool shared_hosts = fabric.host_of.size() > fabric.hosts.size();
  return (!several_hosts || fabric.network.measured) && (!shared_hosts || fabric.memory.measured);
}

std::optional<Fabric> sufficient_part(const Fabric& known, const Placement& placement) {
  auto part = placed(known, placement.host_of, placement.keys, placement.names, false);
  if (part && !sufficient(*part)) part.reset();
  return part;
}

std::optional<Fabric> usable_part(const Fabric& known, const Placement& placement) {
  if (!doubt_of(known).empty() && !is_young(known, kDoubtfulAge)) return std::nullopt;
  return sufficient_part(known, placement);
}

}  // namespace q7x2
