// CallBuilder: the description of one c10d call for the executor.
//
// Each collective checks its arguments, makes a builder, and adds one TensorCall per executor call.
// `GroupCalls::launch` plans and starts these.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "backend/element_type.h"
#include "backend/plain_tensors.h"
#include "backend/tensor_call.h"
#include "backend/tensors.h"
#include "backend/torch_compat.h"
#include "backend/work.h"

namespace q7x2 {

struct CallBuilder {
  int size;  ///< number of ranks
  c10d::OpType type;
  const char* title;
  ProfiledInputs profiled_inputs;
  std::vector<std::vector<at::Tensor>> results;  ///< the lists of result tensors
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool async_op = true;
  std::shared_ptr<CallBuffers> buffers = std::make_shared<CallBuffers>();
  std::vector<TensorCall> calls = {};
  /// To and from: changes of tensors that the call needs before it is made.
  std::vector<std::pair<at::Tensor, at::Tensor>> changes = {};
  /// From and to: copies between results, made after the call.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies = {};
  /// The call is complete only when these are, too.
  std::vector<std::shared_ptr<Task>> after = {};

  /// Adds a call that only moves bytes. The executor ignores the element type, but the ranks must
  /// agree on it.
  TensorCall& add_moving(Collective collective, const at::Tensor& tensor, int root = -1) {
    TensorCall& each = calls.emplace_back(collective, dtype_of(tensor), root);
    each.call.agreed = static_cast<uint32_t>(tensor.scalar_type());
    return each;
  }
  void add_all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs) {
    TensorCall& each = add_moving(Collective::kAllGather, input);
    each.reads(input);
    for (const at::Tensor& output : outputs) each.writes(output);
  }
  /// Adds an all-gather whose output is one tensor, with one part per rank.
  void add_into_tensor(const at::Tensor& output, const at::Tensor& input) {
    TensorCall& each = add_moving(Collective::kAllGather, input);
    each.reads(input);
    each.writes(output, static_cast<size_t>(size));
  }
  void add_all_reduce(const at::Tensor& tensor, const Reduction& reduction) {
    if (reduction.premultiplies()) changes.emplace_back(tensor, reduction.premultiply(tensor));
    TensorCall& each = calls.emplace_back(Collective::kAllReduce, reducible_dtype(tensor));
    each.flat(tensor, TensorCall::Use::kBoth);
    each.call.reduce = reduction.kind;
    each.call.divisor = reduction.divisor;
  }
  /// `inputs`: one tensor per rank, or one tensor with one part per rank.
  void add_reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                          const Reduction& reduction) {
    TensorCall& each = calls.emplace_back(Collective::kReduceScatter, reducible_dtype(output));
    const size_t parts = static_cast<size_t>(size) / inputs.size();
    for (const at::Tensor& input : inputs) {
      const bool is_changed = reduction.premultiplies();
      each.reads(is_changed ? reduction.premultiply(input).to(input.scalar_type()) : input, parts);
    }
    each.writes(output);
    each.call.reduce = reduction.kind;
    each.call.divisor = reduction.divisor;
  }
};

}  // namespace q7x2
