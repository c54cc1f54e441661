// The end of a job whose work a device does.
#pragma once

#include <memory>

#include "device/work_stream.h"
#include "transport/task/job.h"

namespace q7x2 {

class Task;

/// `job`, which `task` has given out, is complete when `stream` has done all that came before.
/// Throws Error(kTransport) if the device refuses.
void complete_after(WorkStream& stream, Job& job, const std::shared_ptr<Task>& task);

}  // namespace q7x2
