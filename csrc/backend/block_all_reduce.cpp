// The all-reduce of dense tensors that leaves out blocks of zeros.
#include <string>
#include <utility>
#include <vector>

#include "backend/argument_checks.h"
#include "backend/process_group.h"
#include "executor/sparse/sparse_all_reduce.h"
#include "servers/offloaded_call.h"

namespace q7x2 {

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::block_all_reduce(Tensors& tensors,
                                                                  const CodedOptions& opts) {
  const Complain fn = enter("block_all_reduce");
  require(fn, !tensors.empty(), "requires non-empty tensor list");
  check_dense(fn, tensors);
  const auto op = static_cast<c10d::ReduceOp::RedOpType>(opts.op);
  require(fn, op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG,
          "'blocks' is for a SUM or an AVG");
  require(fn, opts.errors.empty(), "'blocks' loses nothing, and takes no residual");
  require(fn, !opts.refuses_nonfinite,
          "'blocks' does not look at results: nonfinite must be "
          "\"propagate\"");
  require(
      fn, opts.edges == EdgeWish::kAuto,
      "'blocks' has no edges to choose: expected auto, got " + std::string(to_string(opts.edges)));
  const Reduction reduction(opts.op, size_);
  Launch call{c10d::OpType::ALLREDUCE,
              "q7x2:block_all_reduce",
              tensors,
              {tensors},
              opts.timeout,
              opts.async_op};
  std::vector<SparseCall> calls;
  std::vector<TaskMemory> memory;
  std::vector<std::shared_ptr<OffloadedCall>> served;
  for (const at::Tensor& tensor : tensors) {
    const DType dtype = reducible_dtype(tensor);
    const Region region = call.buffers->in_place(tensor);
    const std::span bytes(region.data, region.bytes);
    const auto rows = std::make_shared<BlockRows>(bytes, size_);
    calls.push_back({.layout = rows->layout(),
                     .rows = rows,
                     .ranks = size_,
                     .dtype = dtype,
                     .divisor = reduction.divisor,
                     .agreed = region.bytes,
                     .bytes = region.bytes,
                     .title = kTitleOfBlocks,
                     .plan = kBlocksOfRanks});
    memory.push_back({.reads = {{region}}, .writes = {{region}}, .in_strips = false});
    const bool may_be =
        servers_ && !call.buffers->device() && servers_->serves_blocks(region.bytes);
    served.push_back(may_be ? servers_->attempt_blocks(calls.back(), bytes, call.buffers,
                                                       effective(call.timeout))
                            : nullptr);
  }
  return launch_sparse(std::move(call), std::move(calls), memory, served);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::launch_sparse(
    Launch&& launch, std::vector<SparseCall> calls, const std::vector<TaskMemory>& memory,
    const std::vector<std::shared_ptr<OffloadedCall>>& served) {
  auto work =
      c10::make_intrusive<WorkQ7x2>(runtime_, rank_, launch.type, launch.title,
                                    launch.profiled_inputs, std::move(launch.results), ++sequence_);
  std::vector<std::shared_ptr<InputLatch>> inputs(calls.size());
  if (launch.buffers->device()) {
    inputs = read_device(*launch.buffers, memory, DeviceLanes::kCollectives);
  }
  std::vector<std::shared_ptr<Task>> tasks;
  try {
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::chrono::milliseconds timeout = effective(launch.timeout);
      if (i < served.size() && served[i]) {
        tasks.push_back(served[i]->task());
        tasks.push_back(std::make_shared<OffloadedTask<SparseAllReduceTask>>(
            served[i], plans_, group_, std::move(calls[i]), launch.buffers, timeout));
      } else {
        tasks.push_back(std::make_shared<SparseAllReduceTask>(group_, std::move(calls[i]),
                                                              launch.buffers, timeout));
        tasks.back()->set_inputs(std::move(inputs[i]));
      }
    }
    if (launch.buffers->device()) launch.buffers->write();
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
  const bool caller_waits = !launch.async_op && launch.buffers->stream() == nullptr;
  return start(work, std::move(tasks), std::move(launch.buffers), caller_waits);
}

}  // namespace q7x2
