// From torch's tensors, dtypes and reductions to the bytes that the layers below work on.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "backend/torch_compat.h"
#include "base/types.h"
#include "executor/collective.h"

namespace q7x2 {

/// The element type of a reduction over `tensor`. Throws for those that q7x2 cannot reduce.
DType reducible_dtype(const at::Tensor& tensor);

/// A c10d reduction, taken apart. `premultiply` applies the factor of PREMUL_SUM to a contribution.
struct Reduction {
  ReduceKind kind = ReduceKind::kSum;
  int divisor = 1;
  std::optional<double> factor;
  std::optional<at::Tensor> tensor_factor;

  Reduction(const c10d::ReduceOp& op, int world_size);
  bool premultiplies() const { return factor.has_value() || tensor_factor.has_value(); }
  at::Tensor premultiply(const at::Tensor& contribution) const;
};

/// The host memory one call works on. Contiguous CPU tensors are used where they lie; others (on a
/// GPU, strided, conjugated) through a contiguous copy on the host, copied back at the end. Keeps
/// all of it alive.
class HostBuffers {
 public:
  /// Read only.
  Region input(const at::Tensor& tensor);
  /// Written entirely.
  Region output(const at::Tensor& tensor);
  /// A tensor that occurs in a call twice contributes what it holds now, both times.
  Region in_place(const at::Tensor& tensor);
  /// A copy that belongs to the call, to be read and written.
  Region private_copy(const at::Tensor& tensor);
  Region private_copy(Region region);

  /// After `copy_back`, copies `source` to `destination` too.
  void also_copy(const at::Tensor& source, const at::Tensor& destination);
  /// Runs `last` after all copies.
  void then(std::function<void()> last) { last_ = std::move(last); }
  bool has_copies() const { return !copies_.empty() || last_ != nullptr; }
  /// Makes the results visible in the caller's tensors. Any thread.
  void copy_back() const;

 private:
  Region keep(at::Tensor host);

  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // from, to; in order
  std::function<void()> last_;
};

}  // namespace q7x2
