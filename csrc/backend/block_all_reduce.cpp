// The all-reduce of dense tensors that does not send blocks of zeros.
#include <string>
#include <utility>
#include <vector>

#include "backend/argument_checks.h"
#include "backend/collectives.h"
#include "executor/sparse/sparse_all_reduce.h"
#include "servers/offloaded_call.h"

namespace q7x2::collectives {

WorkPointer block_all_reduce(GroupCalls& group, Tensors& tensors, const CodedOptions& opts) {
  const Complain fn = group.enter("block_all_reduce");
  require(fn, !tensors.empty(), "requires non-empty tensor list");
  check_dense(fn, tensors);
  const auto op = static_cast<c10d::ReduceOp::RedOpType>(opts.op);
  require(fn, op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG,
          "'blocks' is for a SUM or an AVG");
  require(fn, opts.errors.empty(), "'blocks' is lossless and takes no residual");
  require(fn, !opts.refuses_nonfinite,
          "'blocks' does not check the result: nonfinite must be "
          "\"propagate\"");
  require(
      fn, opts.edges == EdgeWish::kAuto,
      "'blocks' has no edges to choose: expected auto, got " + std::string(to_string(opts.edges)));
  const Reduction reduction(opts.op, group.size());
  CallBuilder call{group.size(),
                   c10d::OpType::ALLREDUCE,
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
    const auto rows = std::make_shared<BlockRows>(bytes, group.size());
    calls.push_back({.layout = rows->layout(),
                     .rows = rows,
                     .ranks = group.size(),
                     .dtype = dtype,
                     .divisor = reduction.divisor,
                     .agreed = region.bytes,
                     .bytes = region.bytes,
                     .title = kTitleOfBlocks,
                     .plan = kBlocksOfRanks});
    memory.push_back({.reads = {{region}}, .writes = {{region}}, .in_strips = false});
    const bool may_be =
        group.servers() && !call.buffers->device() && group.servers()->serves_blocks(region.bytes);
    served.push_back(may_be ? group.servers()->attempt_blocks(calls.back(), bytes, call.buffers,
                                                              group.effective(call.timeout))
                            : nullptr);
  }
  return group.launch_sparse(std::move(call), std::move(calls), memory, served);
}

}  // namespace q7x2::collectives
