// Completes a job whose work is done by a device.
#pragma once

#include <memory>

#include "device/work_stream.h"
#include "transport/task/job.h"

namespace q7x2 {

class Task;

/// Completes `job`, which belongs to `task`, when `stream` has done all that was enqueued before.
/// Throws Error(kTransport) if the device refuses.
void complete_after(WorkStream& stream, Job& job, const std::shared_ptr<Task>& task);

}  // namespace q7x2
