// The uncompressed collectives that only move bytes: broadcast, all-gather, gather, scatter and
// all-to-all. Each checks its arguments, and describes its calls to the executor.
#include <string>
#include <utility>
#include <vector>

#include "backend/argument_checks.h"
#include "backend/collectives.h"

namespace q7x2::collectives {

using c10d::OpType;

namespace {

/// Checks the tensor list of a root. The lengths may differ, except that the root's part matches
/// `own`.
void check_root_list(const Complain& fn, const at::Tensor& own, const Tensors& list, int root) {
  check_dense(fn, list);
  check_same_type(fn, own, list);
  c10d::assertSizesMatch(fn, own.sizes(), list, static_cast<size_t>(root));
}

}  // namespace

// --------------------------------------------------------------------------------------- broadcast

WorkPointer broadcast(GroupCalls& group, Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const Complain fn = group.enter("broadcast");
  c10d::assertRootRank(fn, opts.rootRank, group.size());
  c10d::assertRootTensor(fn, opts.rootTensor, static_cast<int64_t>(tensors.size()));
  check_tensors(fn, tensors);
  CallBuilder call{group.size(), OpType::BROADCAST, "q7x2:broadcast", tensors,
                   {tensors},    opts.timeout,      opts.asyncOp};
  const at::Tensor& root_tensor = tensors[static_cast<size_t>(opts.rootTensor)];
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_same(root_tensor)) {
      call.copies.emplace_back(root_tensor, tensor);
    }
  }
  call.add_moving(Collective::kBroadcast, tensors[0], static_cast<int>(opts.rootRank))
      .flat(root_tensor,
            opts.rootRank == group.rank() ? TensorCall::Use::kRead : TensorCall::Use::kWritten);
  return group.launch(std::move(call));
}

// -------------------------------------------------------------------------------------- all-gather

WorkPointer all_gather(GroupCalls& group, std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& opts) {
  const Complain fn = group.enter("allgather");
  require(fn, !inputs.empty(), "requires non-empty input tensor list");
  require(fn, outputs.size() == inputs.size(),
          "requires input/output tensor lists to have the same length");
  const size_t expected = inputs.size() * static_cast<size_t>(group.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() != expected) {
      fn("invalid output tensor list at index " + std::to_string(i) + " (expected length " +
         std::to_string(expected) + ", got " + std::to_string(outputs[i].size()) + ")");
    }
  }
  check_tensors(fn, inputs);
  // Ranks may contribute different sizes. Every rank knows all sizes from its outputs.
  for (const Tensors& list : outputs) {
    check_same_type(fn, inputs[0], list);
    for (size_t j = 0; j < inputs.size(); ++j) {
      const size_t mine = static_cast<size_t>(group.rank()) * inputs.size() + j;
      c10d::assertSizesMatch(fn, inputs[j].sizes(), list, mine);
      for (size_t r = 0; r < static_cast<size_t>(group.size()); ++r) {
        c10d::assertDense(fn, list[r * inputs.size() + j]);
      }
    }
  }
  CallBuilder call{group.size(), OpType::ALLGATHER, "q7x2:all_gather", inputs,
                   outputs,      opts.timeout,      opts.asyncOp};
  // Input j of rank r belongs at index r * inputs + j of every list.
  for (size_t j = 0; j < inputs.size(); ++j) {
    Tensors from_rank;
    for (size_t r = 0; r < static_cast<size_t>(group.size()); ++r) {
      from_rank.push_back(outputs[0][r * inputs.size() + j]);
    }
    call.add_all_gather(inputs[j], from_rank);
  }
  for (size_t i = 1; i < outputs.size(); ++i) {
    for (size_t k = 0; k < outputs[i].size(); ++k) {
      call.copies.emplace_back(outputs[0][k], outputs[i][k]);
    }
  }
  return group.launch(std::move(call));
}

WorkPointer all_gather_base(GroupCalls& group, at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& opts) {
  const Complain fn = group.enter("_allgather_base");
  check_dense(fn, {output, input});
  check_same_type(fn, input, {output});
  TORCH_CHECK(output.numel() == input.numel() * group.size(),
              "ProcessGroupQ7x2::_allgather_base: output tensor size must be "
              "equal to world_size "
              "times input tensor size: expected ",
              input.numel() * group.size(), " elements, got ", output.numel());
  CallBuilder call{group.size(),
                   OpType::_ALLGATHER_BASE,
                   "q7x2:_all_gather_base",
                   {input},
                   {{output}},
                   opts.timeout,
                   opts.asyncOp};
  call.add_into_tensor(output, input);
  return group.launch(std::move(call));
}

WorkPointer all_gather_coalesced(GroupCalls& group, std::vector<Tensors>& output_lists,
                                 Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const Complain fn = group.enter("allgather_coalesced");
  require(fn, !inputs.empty(), "requires non-empty input tensor list");
  require(fn, output_lists.size() == static_cast<size_t>(group.size()),
          "output lists should be equal to world size");
  for (const Tensors& list : output_lists) {
    require(fn, list.size() == inputs.size(),
            c10::str("invalid output size: (expected length ", inputs.size(), ", got ", list.size(),
                     ")"));
  }
  check_dense(fn, inputs);
  for (const Tensors& list : output_lists) {
    for (size_t j = 0; j < list.size(); ++j) {
      c10d::assertTypeMatch(fn, inputs[j].options(), list, j);
      require(fn, list[j].sizes() == inputs[j].sizes(),
              c10::str("invalid size of output tensor at index ", j, " (expected ",
                       inputs[j].sizes(), ", got ", list[j].sizes(), ")"));
    }
  }
  CallBuilder call{group.size(),      OpType::ALLGATHER_COALESCED,
                   "q7x2:all_gather", inputs,
                   output_lists,      opts.timeout,
                   opts.asyncOp};
  for (size_t j = 0; j < inputs.size(); ++j) {
    Tensors from_rank;
    for (const Tensors& list : output_lists) {
      from_rank.push_back(list[j]);
    }
    call.add_all_gather(inputs[j], from_rank);
  }
  return group.launch(std::move(call));
}

WorkPointer all_gather_into_tensor_coalesced(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  const Complain fn = group.enter("allgather_into_tensor_coalesced");
  require(fn, !inputs.empty(), "requires non-empty input tensor list");
  require(fn, outputs.size() == inputs.size(),
          "requires input/output tensor lists to have the same length");
  CallBuilder call{group.size(),
                   OpType::ALLGATHER_COALESCED,
                   "q7x2:all_gather_into_tensor_coalesced",
                   inputs,
                   {outputs},
                   opts.timeout,
                   opts.asyncOp};
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dense(fn, {outputs[i], inputs[i]});
    check_same_type(fn, inputs[i], {outputs[i]});
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * group.size(),
                "ProcessGroupQ7x2::allgather_into_tensor_coalesced: output ", i, " must have ",
                inputs[i].numel() * group.size(), " elements, got ", outputs[i].numel());
    call.add_into_tensor(outputs[i], inputs[i]);
  }
  return group.launch(std::move(call));
}

// --------------------------------------------------------------------------------- gather, scatter
//
// The tensors in the root's list may have different lengths. Only the root knows them all, so each
// rank plans the call without them, and each message shows whether its two ranks agree about its
// length.

WorkPointer gather(GroupCalls& group, std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::GatherOptions& opts) {
  const Complain fn = group.enter("gather");
  c10d::assertRootRank(fn, opts.rootRank, group.size());
  c10d::assertSingleElementInput(fn, inputs);
  check_dense(fn, inputs);
  CallBuilder call{group.size(), OpType::GATHER, "q7x2:gather", inputs,
                   {},           opts.timeout,   opts.asyncOp};
  TensorCall& each =
      call.add_moving(Collective::kGather, inputs[0], static_cast<int>(opts.rootRank));
  each.call.uneven = true;
  const bool is_root = opts.rootRank == group.rank();
  if (is_root) {
    require_list_of_lists(fn, "output", outputs, group.size());
    check_root_list(fn, inputs[0], outputs[0], group.rank());
  } else {
    require(fn, outputs.empty(), "requires empty output on non-root");
  }
  each.reads(inputs[0]);
  if (is_root) {
    call.results = {outputs[0]};
    for (const at::Tensor& output : outputs[0]) each.writes(output);
  }
  return group.launch(std::move(call));
}

WorkPointer scatter(GroupCalls& group, Tensors& outputs, std::vector<Tensors>& inputs,
                    const c10d::ScatterOptions& opts) {
  const Complain fn = group.enter("scatter");
  c10d::assertRootRank(fn, opts.rootRank, group.size());
  c10d::assertSingleElementOutput(fn, outputs);
  check_dense(fn, outputs);
  CallBuilder call{group.size(), OpType::SCATTER, "q7x2:scatter", outputs,
                   {outputs},    opts.timeout,    opts.asyncOp};
  TensorCall& each =
      call.add_moving(Collective::kScatter, outputs[0], static_cast<int>(opts.rootRank));
  each.call.uneven = true;
  const bool is_root = opts.rootRank == group.rank();
  if (is_root) {
    require_list_of_lists(fn, "input", inputs, group.size());
    check_root_list(fn, outputs[0], inputs[0], group.rank());
  } else {
    require(fn, inputs.empty(), "requires empty input on non-root");
  }
  if (is_root) {
    call.profiled_inputs = inputs[0];
    for (const at::Tensor& input : inputs[0]) each.reads(input);
  }
  each.writes(outputs[0]);
  return group.launch(std::move(call));
}

// -------------------------------------------------------------------------------------- all-to-all

WorkPointer all_to_all_base(GroupCalls& group, at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& opts) {
  const Complain fn = group.enter("alltoall_base");
  check_dense(fn, {output, input});
  check_same_type(fn, input, {output});
  const bool even = output_splits.empty() && input_splits.empty();
  if (even) {
    TORCH_CHECK(output.numel() == input.numel(),
                "ProcessGroupQ7x2::alltoall_base: input and output must have "
                "equally many elements "
                "if no splits are given, got ",
                input.numel(), " and ", output.numel());
  }
  const auto lengths = [&](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    TORCH_CHECK(tensor.dim() > 0,
                "ProcessGroupQ7x2::alltoall_base: expected at least one "
                "dimension, got a scalar");
    c10d::checkSplitSizes(splits, tensor, group.size());
    const size_t rows = static_cast<size_t>(tensor.size(0));
    const size_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / rows;
    std::vector<size_t> bytes;
    size_t begin = 0;
    for (size_t r = 0; r < static_cast<size_t>(group.size()); ++r) {
      const size_t count = splits.empty() ? rows / static_cast<size_t>(group.size())
                                          : static_cast<size_t>(splits[r]);
      // The sum of all splits may be right only because it has overflowed, so each split is
      // checked.
      TORCH_CHECK(splits.empty() || (splits[r] >= 0 && count <= rows - begin),
                  "ProcessGroupQ7x2::alltoall_base: expected split sizes from "
                  "0 to the rest of ",
                  rows, " rows, got ", splits);
      bytes.push_back(count * row_bytes);
      begin += count;
    }
    return bytes;
  };
  CallBuilder call{group.size(), OpType::ALLTOALL_BASE, "q7x2:all_to_all", {input},
                   {{output}},   opts.timeout,          opts.asyncOp};
  TensorCall& each = call.add_moving(Collective::kAllToAll, input);
  each.call.uneven = !even;
  each.reads(input, lengths(input, input_splits));
  each.writes(output, lengths(output, output_splits));
  return group.launch(std::move(call));
}

WorkPointer all_to_all(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& opts) {
  const Complain fn = group.enter("alltoall");
  for (const auto& [name, list] : {std::pair("input", &inputs), std::pair("output", &outputs)}) {
    require(fn, list->size() == static_cast<size_t>(group.size()),
            c10::str(name, " tensor list size ", list->size(), " does not match world size ",
                     group.size()));
  }
  check_dense(fn, inputs);
  check_dense(fn, outputs);
  check_same_type(fn, inputs[0], inputs);
  check_same_type(fn, inputs[0], outputs);
  CallBuilder call{group.size(), OpType::ALLTOALL, "q7x2:all_to_all", inputs,
                   {outputs},    opts.timeout,     opts.asyncOp};
  TensorCall& each = call.add_moving(Collective::kAllToAll, inputs[0]);
  each.call.uneven = true;
  for (const at::Tensor& input : inputs) each.reads(input);
  for (const at::Tensor& output : outputs) each.writes(output);
  return group.launch(std::move(call));
}

}  // namespace q7x2::collectives
