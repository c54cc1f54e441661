#include "backend/group_calls.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "backend/argument_checks.h"
#include "backend/choose_residence.h"
#include "executor/collective/call_check.h"
#include "executor/collective/collective.h"
#include "executor/collective/derived_input.h"
#include "executor/collective/message.h"
#include "executor/collective/plan_call.h"
#include "executor/residence/staged.h"
#include "executor/sparse/sparse_all_reduce.h"
#include "plan/algorithms/algorithm_names.h"

namespace q7x2 {
namespace {

thread_local std::string wished_algorithms;

bool balances(const TensorCall& each) {
  const Coding& coding = each.call.coding;
  return coding && coding.codec->spec().balanced;
}

}  // namespace

std::string exchange_algorithms_of_thread(std::string algorithms) {
  parse_algorithms(algorithms);
  return std::exchange(wished_algorithms, std::move(algorithms));
}

const std::string& algorithms_of_thread() {
  return wished_algorithms;
}

void GroupCalls::enter() const {
  parts_.runtime->enter();
  if (!parts_.group) {
    const std::string& name = options_->group_name;
    throw Error(ErrorCode::kInvalidArgument, "the group '" + (name.empty() ? "unnamed" : name) +
                                                 "' has no members yet: call reconfigure");
  }
}

Complain GroupCalls::enter(const char* call) const {
  enter();
  return complain(call);
}

void GroupCalls::count_anew() {
  sequence_ = 0;
  barriers_ = 0;
  windows_ = 0;
  coded_calls_ = 0;
}

// ------------------------------------------------------------------------------------- collectives

std::shared_ptr<Planner> GroupCalls::planner_of(const CollectiveCall& call) const {
  if (parts_.rates) parts_.rates->before(call);
  return parts_.plans->planner();
}

c10::intrusive_ptr<c10d::Work> GroupCalls::launch(CallBuilder&& builder) {
  if (estimate_.is_on()) return estimated(std::move(builder));
  for (const auto& [to, from] : builder.changes) write_result(to, from);
  std::vector<std::shared_ptr<Task>> tasks;
  tasks.reserve(builder.calls.size());
  c10::intrusive_ptr<WorkQ7x2> work;
  CallBuffers& buffers = *builder.buffers;
  try {
    for (TensorCall& each : builder.calls) {
      each.call.algorithms = algorithms_of_thread();
      if (parts_.rates) parts_.rates->before(each.call);
    }
    const MakeResidence residence =
        choose_residence(builder.calls, *parts_.group, *parts_.plans, lanes_);
    if (residence) buffers.stay_on_device();
    for (TensorCall& each : builder.calls) each.place(buffers);
    for (const auto& [from, to] : builder.copies) buffers.also_copy(from, to);
    work = c10::make_intrusive<WorkQ7x2>(parts_.runtime, rank(), builder.type, builder.title,
                                         builder.profiled_inputs, std::move(builder.results),
                                         ++sequence_);
    std::vector<std::shared_ptr<CollectiveTask>> on_device;
    std::vector<std::shared_ptr<InputLatch>> inputs;
    if (buffers.device()) inputs = read_inputs(builder, residence != nullptr);
    for (TensorCall& each : builder.calls) {
      if (auto task = add_task(builder, each, tasks)) on_device.push_back(std::move(task));
    }
    if (buffers.device()) {
      const auto outputs = buffers.write();
      for (size_t i = 0; i < on_device.size(); ++i) {
        on_device[i]->set_residence(residence ? residence(inputs[i])
                                              : std::make_unique<Staged>(inputs[i], outputs[i]));
      }
    }
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  const bool caller_waits = !builder.async_op && buffers.stream() == nullptr;
  return start(work, std::move(tasks), std::move(builder.buffers), caller_waits,
               std::move(builder.after));
}

void GroupCalls::refuse_estimate(const char* call) const {
  TORCH_CHECK(!estimate_.is_on(),
              "q7x2: expected collectives and messages between two ranks while "
              "times are estimated, got ",
              call, ": how long it takes depends on what ranks do");
}

c10::intrusive_ptr<c10d::Work> GroupCalls::estimated(CallBuilder&& builder) {
  double seconds = 0;
  try {
    for (TensorCall& each : builder.calls) {
      each.call.algorithms = algorithms_of_thread();
      check_call(each.call, rank(), size());
      std::shared_ptr<Planner> planner = planner_of(each.call);
      const std::shared_ptr<const Fabric> now = parts_.plans->fabric();
      if (planner->fabric() != now) planner = planner->with(now);
      seconds += predicted_seconds(*planner, each);
    }
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  return estimated(builder.type, std::move(builder.results), seconds);
}

c10::intrusive_ptr<c10d::Work> GroupCalls::estimated(c10d::OpType type,
                                                     std::vector<std::vector<at::Tensor>> results,
                                                     double seconds) {
  estimate_.add(seconds);
  auto work = c10::make_intrusive<WorkQ7x2>(parts_.runtime, rank(), type, nullptr, ProfiledInputs(),
                                            std::move(results), sequence());
  work->start({}, std::make_shared<CallBuffers>(), /*caller_waits=*/false);
  coalescing_.add(work);
  return work;
}

std::shared_ptr<CollectiveTask> GroupCalls::add_task(CallBuilder& builder, TensorCall& each,
                                                     std::vector<std::shared_ptr<Task>>& tasks) {
  CollectiveCall& call = each.call;
  const std::chrono::milliseconds timeout = effective(builder.timeout);
  if (overlaps(call, rank())) {
    for (Region& input : call.input) input = builder.buffers->private_copy(input);
  }
  std::shared_ptr<CollectiveTask> task;
  const std::shared_ptr<OffloadedCall> served =
      each.derivation ? nullptr
                      : attempt(builder, call);  // an attempt would not wait for the derived input
  if (served) {
    tasks.push_back(served->task());
    task = std::make_shared<OffloadedTask<CollectiveTask>>(
        served, parts_.plans, parts_.group,
        plan_call_alone(std::move(call), parts_.plans, rank(), size()), builder.buffers, timeout);
  } else {
    task =
        CollectiveTask::make(parts_.group, plan_call(std::move(call), parts_.plans, rank(), size()),
                             builder.buffers, timeout);
  }
  if (each.derivation) {
    auto [first, derive] = *std::exchange(each.derivation, std::nullopt);
    task->set_prerequisite(std::make_shared<DerivedInput>(
        plan_call(std::move(first), parts_.plans, rank(), size()), std::move(derive)));
  }
  std::shared_ptr<CollectiveTask> on_device;
  if (builder.buffers->device()) on_device = task;
  tasks.push_back(std::move(task));
  return on_device;
}

// The copy is made in the caller's thread, before the attempt begins to overwrite the input.
std::shared_ptr<OffloadedCall> GroupCalls::attempt(CallBuilder& builder,
                                                   const CollectiveCall& call) {
  ServerGroup* const servers = parts_.servers.get();
  if (servers == nullptr || builder.buffers->device() || !servers->serves(call)) return nullptr;
  const bool is_written = call.collective == Collective::kAllReduce || call.root == rank();
  const Region saved =
      is_written && !servers->is_broken() ? builder.buffers->private_copy(call.input[0]) : Region{};
  return servers->attempt(call, saved, builder.buffers, effective(builder.timeout));
}

std::vector<std::shared_ptr<InputLatch>> GroupCalls::read_inputs(CallBuilder& builder, bool stays) {
  std::vector<TaskMemory> memory;
  for (const TensorCall& each : builder.calls) {
    memory.push_back(memory_of(each.call));
    memory.back().on_device = stays;
  }
  auto inputs = read_device(*builder.buffers, memory, DeviceLanes::kCollectives);
  // The codec balances parts by the content of the input, which is counted while the task is made.
  if (std::ranges::any_of(builder.calls, balances)) builder.buffers->stream()->await_reads();
  return inputs;
}

std::vector<std::shared_ptr<InputLatch>> GroupCalls::read_device(
    CallBuffers& buffers, const std::vector<TaskMemory>& tasks, int peer) {
  try {
    return buffers.read(lanes_.lane(*buffers.device(), peer), tasks, parts_.runtime->completions());
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
}

c10::intrusive_ptr<c10d::Work> GroupCalls::launch_sparse(
    CallBuilder&& builder, std::vector<SparseCall> calls, const std::vector<TaskMemory>& memory,
    const std::vector<std::shared_ptr<OffloadedCall>>& served) {
  refuse_estimate("a sparse all-reduce");
  auto work = c10::make_intrusive<WorkQ7x2>(parts_.runtime, rank(), builder.type, builder.title,
                                            builder.profiled_inputs, std::move(builder.results),
                                            ++sequence_);
  std::vector<std::shared_ptr<InputLatch>> inputs(calls.size());
  if (builder.buffers->device()) {
    inputs = read_device(*builder.buffers, memory, DeviceLanes::kCollectives);
  }
  std::vector<std::shared_ptr<Task>> tasks;
  try {
    const std::chrono::milliseconds timeout = effective(builder.timeout);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i < served.size() && served[i]) {
        tasks.push_back(served[i]->task());
        tasks.push_back(std::make_shared<OffloadedTask<SparseAllReduceTask>>(
            served[i], parts_.plans, parts_.group, std::move(calls[i]), builder.buffers, timeout));
      } else {
        tasks.push_back(std::make_shared<SparseAllReduceTask>(parts_.group, std::move(calls[i]),
                                                              builder.buffers, timeout));
        tasks.back()->set_inputs(std::move(inputs[i]));
      }
    }
    if (builder.buffers->device()) builder.buffers->write();
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  const bool caller_waits = !builder.async_op && builder.buffers->stream() == nullptr;
  return start(work, std::move(tasks), std::move(builder.buffers), caller_waits);
}

// ---------------------------------------------------------------------------------- point to point

c10::intrusive_ptr<c10d::Work> GroupCalls::message(c10d::OpType type, const char* title,
                                                   const at::Tensor& tensor, int peer, int tag) {
  if (estimate_.is_on()) {
    if (peer < 0) refuse_estimate("a receive from any rank");
    return estimated(type, {{tensor}},
                     predicted_seconds(*parts_.plans->fabric(), rank(), peer, tensor.nbytes()));
  }
  const bool sends = type == c10d::OpType::SEND;
  auto buffers = std::make_shared<CallBuffers>();
  const Region region = sends ? buffers->input(tensor) : buffers->output(tensor);
  auto work =
      c10::make_intrusive<WorkQ7x2>(parts_.runtime, rank(), type, title, ProfiledInputs({tensor}),
                                    std::vector<Tensors>{{tensor}}, sequence());
  auto task = std::make_shared<MessageTask>(
      parts_.group, sends ? MessageTask::Direction::kSend : MessageTask::Direction::kReceive,
      peer < 0 ? MessageTask::kAnySource : peer, static_cast<uint32_t>(tag), region.data,
      region.bytes, buffers, timeout_.load());
  std::shared_ptr<InputLatch> inputs;
  if (buffers->device()) {
    inputs = read_device(*buffers, {memory_of_message(region, sends)}, peer)[0];
    buffers->write();
  }
  if (sends) task->set_inputs(in_order(std::move(inputs), peer));
  return start(work, {std::move(task)}, std::move(buffers),
               /*caller_waits=*/false);
}

// Messages to one peer are sent in the order of the calls. So a message with a CPU tensor waits for
// the messages with device tensors before it.
std::shared_ptr<InputLatch> GroupCalls::in_order(std::shared_ptr<InputLatch> inputs, int peer) {
  if (!inputs && !has_sent_from_device_) return nullptr;
  has_sent_from_device_ = true;
  const std::lock_guard<std::mutex> lock(sends_mutex_);
  std::weak_ptr<InputLatch>& last = last_sends_[peer];
  if (inputs) {
    last = inputs;
  } else {
    inputs = last.lock();
  }
  return inputs;
}

c10::intrusive_ptr<c10d::Work> GroupCalls::start(const c10::intrusive_ptr<WorkQ7x2>& work,
                                                 std::vector<std::shared_ptr<Task>> tasks,
                                                 std::shared_ptr<CallBuffers> buffers,
                                                 bool caller_waits,
                                                 std::vector<std::shared_ptr<Task>> after) {
  work->start(std::move(tasks), std::move(buffers), caller_waits,
              events_->expect(compat::completion_key_of(*work), hook_ ? hook_->expect() : nullptr),
              std::move(after));
  coalescing_.add(work);
  return work;
}

}  // namespace q7x2
