// Site: a Fabric as the cost model reads it, made once for all Schedules on it.
#pragma once

#include "fabric/fabric.h"
#include "fabric/routes.h"
#include "plan/machines.h"

namespace q7x2 {

struct Site {
  /// `of` must stay.
  explicit Site(const Fabric& of) : fabric(of), routes(of), machines(of) {}

  const Fabric& fabric;
  Routes routes;
  Machines machines;
};

}  // namespace q7x2
