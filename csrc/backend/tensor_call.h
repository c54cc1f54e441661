// TensorCall: a collective on tensors, described before it is decided where its elements are.
//
// Its regions have their lengths from the start. They get their addresses when `launch` has decided
// (backend/launch.cpp): those of the tensors, or of host memory that stands for them.
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

  /// What the call reads is made by `derive`, in a job, from what the all-reduce `first` brings
  /// (executor/collective/derived_input.h).
  struct Derivation {
    CollectiveCall first;
    std::function<void()> derive;
  };
  std::optional<Derivation> derivation;

  /// The buffer of a collective that has one: its input and its output.
  void flat(const at::Tensor& tensor, Use use);
  /// A tensor that holds the next `parts` regions, of equal length, one after another.
  void reads(const at::Tensor& tensor, size_t parts = 1);
  void writes(const at::Tensor& tensor, size_t parts = 1);
  /// The same for regions of these lengths, in bytes.
  void reads(const at::Tensor& tensor, std::span<const size_t> lengths);
  void writes(const at::Tensor& tensor, std::span<const size_t> lengths);
  /// The residual of all inputs.
  void keeps_errors(const at::Tensor& tensor) { errors_ = tensor; }
  bool has_errors() const { return errors_.has_value(); }

  /// A tensor of the call, a written one if there is one.
  const at::Tensor& any_tensor() const;
  /// Where the part of rank `rank` lies in the tensors that have a part for each rank. There the
  /// call may be in place. Null: it has none.
  const void* part_of(int rank) const;
  /// Adds the tensors that are only read, and those that are written.
  void list(std::vector<at::Tensor>& read, std::vector<at::Tensor>& written) const;

  /// Gives the regions their addresses.
  void place(HostBuffers& buffers);

 private:
  struct Operand {
    at::Tensor tensor;
    Use use;
    size_t regions;
  };
  using Operands = c10::SmallVector<Operand, 1>;

  static void place(HostBuffers& buffers, const Operands& operands, std::vector<Region>& regions);

  bool is_flat_ = false;
  Operands input_;  // of a flat collective: its buffer
  Operands output_;
  std::optional<at::Tensor> errors_;
};

}  // namespace q7x2
