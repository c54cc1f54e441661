// FabricMemory: the Fabrics that this process has measured or read, which later groups on the same
// hosts need not measure again.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "executor/probe/placement.h"
#include "fabric/fabric.h"

namespace q7x2 {

class FabricMemory {
 public:
  /// The memory of this process.
  static FabricMemory& instance();

  /// The first that `accept` makes something of, from the newest on.
  std::optional<Fabric> find(
      const std::function<std::optional<Fabric>(const Fabric&)>& accept) const;
  void keep(const std::shared_ptr<const Fabric>& fabric);
  /// Adds the times of `measured` to the Fabric of the same hosts. If there is none, keeps
  /// `measured`.
  void learn(const Fabric& measured);

 private:
  void push(const std::shared_ptr<const Fabric>& fabric);

  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const Fabric>> fabrics_;  // newest first
};

/// Whether all was measured that matters between these ranks.
bool sufficient(const Fabric& fabric);
/// What `known` says of these ranks, if that is enough.
std::optional<Fabric> sufficient_part(const Fabric& known, const Placement& placement);
/// The same, unless it was measured on a busy machine, and long ago.
std::optional<Fabric> usable_part(const Fabric& known, const Placement& placement);

}  // namespace q7x2
