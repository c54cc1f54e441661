// The uncompressed collectives that reduce: all-reduce, reduce and reduce-scatter. Each checks its
// arguments, and describes its calls to the executor.
#include <string>
#include <utility>
#include <vector>

#include "backend/argument_checks.h"
#include "backend/collectives.h"
#include "backend/plain_tensors.h"
#include "kernels/cpu/reduce.h"

namespace q7x2::collectives {

using c10d::OpType;

// -------------------------------------------------------------------------------------- all-reduce

WorkPointer all_reduce(GroupCalls& group, Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const Complain fn = group.enter("allreduce");
  c10d::assertNonEmpty(fn, tensors);
  if (tensors[0].is_sparse()) {
    return sparse_all_reduce(group, tensors, opts);
  }
  check_tensors(fn, tensors);
  const Reduction reduction(opts.reduceOp, group.size());
  CallBuilder call{group.size(), OpType::ALLREDUCE,       "q7x2:all_reduce",
                   tensors,      std::vector(1, tensors), opts.timeout,
                   opts.asyncOp};
  // Several tensors of one rank are reduced on the host first, as if each came from another rank.
  if (tensors.size() > 1) {
    TORCH_CHECK(reduction.divisor == 1 && !reduction.premultiplies(),
                "ProcessGroupQ7x2::allreduce: AVG and PREMUL_SUM take one "
                "tensor per rank, got ",
                tensors.size());
    const at::Tensor total = plain_on_host(tensors[0]);
    std::vector<at::Tensor> host;
    std::vector<const void*> contributions{total.const_data_ptr()};
    for (size_t i = 1; i < tensors.size(); ++i) {
      host.push_back(plain_on_host(tensors[i]));
      contributions.push_back(host.back().const_data_ptr());
    }
    q7x2::reduce(total.mutable_data_ptr(), contributions, static_cast<size_t>(total.numel()),
                 reducible_dtype(total), reduction.kind);
    call.add_all_reduce(total, reduction);
    for (const at::Tensor& tensor : tensors) {
      call.copies.emplace_back(total, tensor);
    }
  } else {
    call.add_all_reduce(tensors[0], reduction);
  }
  return group.launch(std::move(call));
}

WorkPointer all_reduce_coalesced(GroupCalls& group, Tensors& tensors,
                                 const c10d::AllreduceCoalescedOptions& opts) {
  const Complain fn = group.enter("allreduce_coalesced");
  c10d::assertNonEmpty(fn, tensors);
  c10d::assertLayoutMatch(fn, tensors);
  require(fn, tensors[0].layout() == at::kStrided,
          c10::str("unsupported layout ", tensors[0].layout(), ", expected dense tensors"));
  c10d::assertSameDevice(fn, tensors);
  for (const at::Tensor& tensor : tensors) {
    require(fn, tensor.scalar_type() == tensors[0].scalar_type(),
            "tensors must all have the same type");
  }
  const Reduction reduction(opts.reduceOp, group.size());
  CallBuilder call{group.size(),      OpType::ALLREDUCE_COALESCED,
                   "q7x2:all_reduce", tensors,
                   {tensors},         opts.timeout,
                   opts.asyncOp};
  for (const at::Tensor& tensor : tensors) {
    call.add_all_reduce(tensor, reduction);
  }
  return group.launch(std::move(call));
}

// ------------------------------------------------------------------------------------------ reduce

WorkPointer reduce(GroupCalls& group, Tensors& tensors, const c10d::ReduceOptions& opts) {
  const Complain fn = group.enter("reduce");
  c10d::assertRootRank(fn, opts.rootRank, group.size());
  c10d::assertRootTensor(fn, opts.rootTensor, static_cast<int64_t>(tensors.size()));
  c10d::assertSingleElement(fn, tensors);
  check_tensors(fn, tensors);
  const Reduction reduction(opts.reduceOp, group.size());
  CallBuilder call{group.size(), OpType::REDUCE, "q7x2:reduce", tensors,
                   {tensors},    opts.timeout,   opts.asyncOp};
  const bool root = opts.rootRank == group.rank();
  at::Tensor contribution = tensors[0];
  if (reduction.premultiplies()) {
    contribution = reduction.premultiply(contribution).to(contribution.scalar_type());
    if (root) call.changes.emplace_back(tensors[0], contribution);
  }
  // Plans of a reduce only write to the root's buffer. The checker proves that.
  TensorCall& each = call.calls.emplace_back(Collective::kReduce, reducible_dtype(tensors[0]),
                                             static_cast<int>(opts.rootRank));
  if (root) {
    each.flat(tensors[0], TensorCall::Use::kBoth);
  } else {
    each.flat(contribution, TensorCall::Use::kRead);
  }
  each.call.reduce = reduction.kind;
  each.call.divisor = reduction.divisor;
  return group.launch(std::move(call));
}

// ---------------------------------------------------------------------------------- reduce-scatter

WorkPointer reduce_scatter(GroupCalls& group, Tensors& outputs, std::vector<Tensors>& inputs,
                           const c10d::ReduceScatterOptions& opts) {
  const Complain fn = group.enter("reduce_scatter");
  c10d::assertSingleElementOutput(fn, outputs);
  require(fn, inputs.size() == 1,
          c10::str("requires a single-element input list containing a list with ", group.size(),
                   " tensors."));
  require(fn, inputs[0].size() == static_cast<size_t>(group.size()),
          "invalid input tensor list size, must be world size");
  check_dense(fn, inputs[0]);
  check_dense(fn, outputs);
  // Parts may differ in length. Every rank knows all lengths from its inputs.
  check_same_type(fn, outputs[0], inputs[0]);
  c10d::assertSizesMatch(fn, outputs[0].sizes(), inputs[0], static_cast<size_t>(group.rank()));
  const Reduction reduction(opts.reduceOp, group.size());
  CallBuilder call{group.size(), OpType::REDUCE_SCATTER, "q7x2:reduce_scatter", inputs[0],
                   {outputs},    opts.timeout,           opts.asyncOp};
  call.add_reduce_scatter(outputs[0], inputs[0], reduction);
  return group.launch(std::move(call));
}

namespace {

WorkPointer reduce_scatter_tensors(GroupCalls& group, OpType type, const char* title,
                                   const Complain& fn, Tensors& outputs, Tensors& inputs,
                                   const c10d::ReduceScatterOptions& opts) {
  require(fn, !inputs.empty(), "requires non-empty input tensor list");
  require(fn, outputs.size() == inputs.size(),
          "requires input/output tensor lists to have the same length");
  const Reduction reduction(opts.reduceOp, group.size());
  CallBuilder call{group.size(), type, title, inputs, {outputs}, opts.timeout, opts.asyncOp};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(fn, {outputs[i], inputs[i]});
    check_same_type(fn, inputs[i], {outputs[i]});
    if (inputs[i].numel() != outputs[i].numel() * group.size()) {
      fn("input tensor must be the same size as output size times world size: "
         "expected " +
         std::to_string(outputs[i].numel() * group.size()) + " elements, got " +
         std::to_string(inputs[i].numel()));
    }
    call.add_reduce_scatter(outputs[i], {inputs[i]}, reduction);
  }
  return group.launch(std::move(call));
}

}  // namespace

WorkPointer reduce_scatter_base(GroupCalls& group, at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensors(group, OpType::_REDUCE_SCATTER_BASE, "q7x2:_reduce_scatter_base",
                                group.enter("_reduce_scatter_base"), outputs, inputs, opts);
}

WorkPointer reduce_scatter_tensor_coalesced(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                                            const c10d::ReduceScatterOptions& opts) {
  return reduce_scatter_tensors(
      group, compat::kReduceScatterCoalesced, "q7x2:reduce_scatter_tensor_coalesced",
      group.enter("reduce_scatter_tensor_coalesced"), outputs, inputs, opts);
}

}  // namespace q7x2::collectives
