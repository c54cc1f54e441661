// How a call of c10d becomes tasks: each collective fills a `Launch`, and this plans and starts it.
#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/process_group.h"
#include "executor/collective/call_check.h"
#include "executor/collective/collective.h"
#include "executor/collective/plan_call.h"

namespace q7x2 {
namespace {

thread_local std::string wished_algorithms;

bool balances(const CollectiveCall& call) {
  return call.coding && call.coding.codec->spec().balanced;
}

}  // namespace

std::string ProcessGroupQ7x2::exchange_algorithms(std::string algorithms) {
  parse_algorithms(algorithms);
  return std::exchange(wished_algorithms, std::move(algorithms));
}

const std::string& ProcessGroupQ7x2::algorithms_of_thread() {
  return wished_algorithms;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::launch(Launch&& launch) {
  auto work =
      c10::make_intrusive<WorkQ7x2>(runtime_, rank_, launch.type, launch.title,
                                    launch.profiled_inputs, std::move(launch.results), ++sequence_);
  std::vector<std::shared_ptr<Task>> tasks;
  tasks.reserve(launch.calls.size());
  std::vector<std::shared_ptr<CollectiveTask>> on_device;
  std::vector<std::shared_ptr<InputLatch>> inputs;
  if (launch.buffers->device()) {
    std::vector<TaskMemory> memory;
    std::ranges::transform(launch.calls, std::back_inserter(memory), memory_of);
    for (TaskMemory& each : memory) each.on_device = launch.resident_device.has_value();
    inputs = read_device(*launch.buffers, memory, DeviceLanes::kCollectives);
    // Parts are balanced by what the input holds, which is counted while the task is made.
    if (std::ranges::any_of(launch.calls, balances)) launch.buffers->stream()->await_reads();
  }
  try {
    for (CollectiveCall& call : launch.calls) {
      call.algorithms = algorithms_of_thread();
      call.is_direct = launch.is_direct;
      if (overlaps(call, rank_)) {
        for (Region& input : call.input) input = launch.buffers->private_copy(input);
      }
      const std::shared_ptr<OffloadedCall> served = attempt(launch, call);
      PlannedCall planned = served ? plan_call_alone(std::move(call), plans_, rank_, size_)
                                   : plan_call(std::move(call), plans_, rank_, size_);
      auto task = CollectiveTask::make(group_, std::move(planned), launch.buffers,
                                       effective(launch.timeout));
      if (served) {
        tasks.push_back(served->task());
        task->set_offload(served);
      }
      if (launch.buffers->device()) on_device.push_back(task);
      tasks.push_back(std::move(task));
    }
    if (launch.buffers->device()) {
      const auto outputs = launch.buffers->write();
      for (size_t i = 0; i < on_device.size(); ++i) {
        if (launch.resident_device) {
          on_device[i]->set_device(inputs[i], *launch.resident_device);
        } else {
          on_device[i]->set_device(inputs[i], outputs[i]);
        }
      }
    }
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  const bool caller_waits = !launch.async_op && launch.buffers->stream() == nullptr;
  return start(work, std::move(tasks), std::move(launch.buffers), caller_waits,
               std::move(launch.after));
}

// The copy is made in the caller's thread, before the attempt begins to overwrite its input.
std::shared_ptr<OffloadedCall> ProcessGroupQ7x2::attempt(Launch& launch,
                                                         const CollectiveCall& call) {
  if (!servers_ || launch.buffers->device() || !servers_->serves(call)) return nullptr;
  const bool is_written = call.collective == Collective::kAllReduce || call.root == rank_;
  const Region saved =
      is_written && !servers_->is_broken() ? launch.buffers->private_copy(call.input[0]) : Region{};
  return servers_->attempt(call, saved, launch.buffers, effective(launch.timeout));
}

std::vector<std::shared_ptr<InputLatch>> ProcessGroupQ7x2::read_device(
    HostBuffers& buffers, const std::vector<TaskMemory>& tasks, int peer) {
  try {
    return buffers.read(lanes_.lane(*buffers.device(), peer), tasks, runtime_->completions());
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
}

std::vector<Region> ProcessGroupQ7x2::split_region(Region whole) const {
  const size_t part = whole.bytes / static_cast<size_t>(size_);
  std::vector<Region> parts;
  for (size_t r = 0; r < static_cast<size_t>(size_); ++r) {
    parts.push_back({whole.data + r * part, part});
  }
  return parts;
}

}  // namespace q7x2
