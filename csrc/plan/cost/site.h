// Site: a Fabric as the cost model reads it, made once for all Schedules on it.
#pragma once

#include <memory>

#include "fabric/fabric.h"
#include "fabric/routes.h"
#include "plan/cost/machines.h"

namespace q7x2 {

struct Site {
  /// `of` must stay.
  explicit Site(const Fabric& of)
      : fabric(of),
        wide(of.servers.empty() ? nullptr : std::make_unique<const Fabric>(of.with_servers())),
        members(wide ? *wide : of),
        routes(members),
        machines(members) {}

  const Fabric& fabric;                      ///< the ranks
  const std::unique_ptr<const Fabric> wide;  ///< see Fabric::with_servers; null: no servers
  const Fabric& members;                     ///< the ranks and the servers
  Routes routes;                             ///< between members
  Machines machines;                         ///< machines of members
};

}  // namespace q7x2
