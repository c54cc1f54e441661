// ServedCall: what a call of the ranks needs to know of its attempt by servers (executor/annex.h).
#pragma once

#include <memory>

#include "executor/collective_call.h"

namespace q7x2 {

class Annex;
class CollectiveTask;

struct ServedCall {
  std::shared_ptr<Annex> annex;
  std::shared_ptr<CollectiveTask> attempt;
  /// A copy of what the attempt may overwrite; empty: it overwrites nothing.
  Region saved;
};

}  // namespace q7x2
