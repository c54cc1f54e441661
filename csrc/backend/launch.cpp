// How a call of c10d becomes tasks: each collective fills a `Launch`, and this plans and starts it.
#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/process_group.h"
#include "executor/collective/call_check.h"
#include "executor/collective/collective.h"
#include "executor/collective/plan_call.h"
#include "executor/residence/staged.h"
#include "servers/offloaded_call.h"

namespace q7x2 {
namespace {

thread_local std::string wished_algorithms;

bool balances(const TensorCall& each) {
  const Coding& coding = each.call.coding;
  return coding && coding.codec->spec().balanced;
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
  std::vector<std::shared_ptr<Task>> tasks;
  tasks.reserve(launch.calls.size());
  c10::intrusive_ptr<WorkQ7x2> work;
  try {
    for (TensorCall& each : launch.calls) each.call.algorithms = algorithms_of_thread();
    const MakeResidence residence = choose_residence(launch.calls);
    if (residence) launch.buffers->stay_on_device();
    for (TensorCall& each : launch.calls) each.place(*launch.buffers);
    for (const auto& [from, to] : launch.copies) launch.buffers->also_copy(from, to);
    work = c10::make_intrusive<WorkQ7x2>(runtime_, rank_, launch.type, launch.title,
                                         launch.profiled_inputs, std::move(launch.results),
                                         ++sequence_);
    std::vector<std::shared_ptr<CollectiveTask>> on_device;
    std::vector<std::shared_ptr<InputLatch>> inputs;
    if (launch.buffers->device()) inputs = read_inputs(launch, residence != nullptr);
    for (TensorCall& each : launch.calls) {
      CollectiveCall& call = each.call;
      if (overlaps(call, rank_)) {
        for (Region& input : call.input) input = launch.buffers->private_copy(input);
      }
      const std::shared_ptr<OffloadedCall> served = attempt(launch, call);
      PlannedCall planned = served ? plan_call_alone(std::move(call), plans_, rank_, size_)
                                   : plan_call(std::move(call), plans_, rank_, size_);
      std::shared_ptr<CollectiveTask> task;
      if (served) {
        tasks.push_back(served->task());
        task = std::make_shared<OffloadedTask<CollectiveTask>>(
            served, plans_, group_, std::move(planned), launch.buffers, effective(launch.timeout));
      } else {
        task = CollectiveTask::make(group_, std::move(planned), launch.buffers,
                                    effective(launch.timeout));
      }
      if (launch.buffers->device()) on_device.push_back(task);
      tasks.push_back(std::move(task));
    }
    if (launch.buffers->device()) {
      const auto outputs = launch.buffers->write();
      for (size_t i = 0; i < on_device.size(); ++i) {
        on_device[i]->set_residence(residence ? residence(inputs[i])
                                              : std::make_unique<Staged>(inputs[i], outputs[i]));
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

std::vector<std::shared_ptr<InputLatch>> ProcessGroupQ7x2::read_inputs(Launch& launch, bool stays) {
  std::vector<TaskMemory> memory;
  for (const TensorCall& each : launch.calls) {
    memory.push_back(memory_of(each.call));
    memory.back().on_device = stays;
  }
  auto inputs = read_device(*launch.buffers, memory, DeviceLanes::kCollectives);
  // Parts are balanced by what the input holds, which is counted while the task is made.
  if (std::ranges::any_of(launch.calls, balances)) launch.buffers->stream()->await_reads();
  return inputs;
}

std::vector<std::shared_ptr<InputLatch>> ProcessGroupQ7x2::read_device(
    HostBuffers& buffers, const std::vector<TaskMemory>& tasks, int peer) {
  try {
    return buffers.read(lanes_.lane(*buffers.device(), peer), tasks, runtime_->completions());
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
}

}  // namespace q7x2
