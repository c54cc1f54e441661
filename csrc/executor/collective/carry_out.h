// carry_out: runs a task and waits for it.
#pragma once

#include <memory>

#include "base/error.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"
#include "transport/task/task.h"

namespace q7x2 {

/// Submits `task`, waits for its end, and throws its error.
inline void carry_out(Group& group, const std::shared_ptr<Task>& task) {
  group.runtime().submit(task, /*caller_waits=*/true);
  group.runtime().wait(*task, TimePoint::max());
  if (task->error()) throw Error(*task->error());
}

}  // namespace q7x2
