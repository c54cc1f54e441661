// TensorCall: an executor call on tensors, described before it is decided where its elements are.
//
// Its regions have lengths from the start. They get addresses when `GroupCalls::launch` has
// decided: those of the tensors, or of host memory that stands for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include "backend/tensors.h"
#include "executor/call/collective_call.h"

namespace q7x2 {

class TensorCall {
 public:
  enum class Use : uint8_t { kRead, kWritten, kBoth };

  explicit TensorCall(Collective collective, DType dtype, int root = -1);

  CollectiveCall call;

  /// The input of the call is computed by `derive`, in a job, from the result of the all-reduce
  /// `first` (executor/collective/derived_input.h).
  struct Derivation {
    CollectiveCall first;
    std::function<void()> derive;
  };
  std::optional<Derivation> derivation;

  /// Sets the buffer of a flat collective, which is its input and its output.
  void flat(const at::Tensor& tensor, Use use);
  /// Adds a tensor that contains the next `parts` regions, of equal length, one after the other.
  void reads(const at::Tensor& tensor, size_t parts = 1);
  void writes(const at::Tensor& tensor, size_t parts = 1);
  /// The same for regions with these lengths, in bytes.
  void reads(const at::Tensor& tensor, std::span<const size_t> lengths);
  void writes(const at::Tensor& tensor, std::span<const size_t> lengths);
  /// Sets the residual of all inputs.
  void keeps_errors(const at::Tensor& tensor) { errors_ = tensor; }
  bool has_errors() const { return errors_.has_value(); }

  /// A tensor of the call: a written one if there is one.
  const at::Tensor& any_tensor() const;
  /// The address of the part of rank `rank` in the tensors that have one part per rank. There the
  /// call may be in place. Null: the call has no such parts.
  const void* part_of(int rank) const;
  /// Appends the tensors that are only read, and those that are written.
  void list(std::vector<at::Tensor>& read, std::vector<at::Tensor>& written) const;

  /// Sets the addresses of the regions.
  void place(CallBuffers& buffers);

 private:
  struct Operand {
    at::Tensor tensor;
    Use use;
    size_t regions;
  };
  using Operands = c10::SmallVector<Operand, 1>;

  static void place(CallBuffers& buffers, const Operands& operands, std::vector<Region>& regions);

  bool is_flat_ = false;
  Operands input_;  // for a flat collective: its buffer
  Operands output_;
  std::optional<at::Tensor> errors_;
};

}  // namespace q7x2
