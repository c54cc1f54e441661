// What PowerSGD sends at a time: factors, which may be rounded to 16 bits on the way, and in front
// of them what is not compressed, which may not.
//
// A factor need not be exact. What the ranks apply is made from the rounded ones, and what that
// lacks of the gradients stays in the residuals, with all that a low rank leaves out.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "comm_hooks/hook.h"

namespace q7x2 {

class FactorMessage {
 public:
  FactorMessage() = default;
  /// `elements`: of one dimension; the first `whole` of them are no factors.
  /// `dtype`: that factors are rounded to.
  FactorMessage(at::Tensor elements, int64_t whole, std::optional<at::ScalarType> dtype)
      : elements_(std::move(elements)), whole_(whole), dtype_(dtype) {}

  const at::Tensor& elements() const { return elements_; }

  /// The sum over all ranks, as one collective, or as two at once.
  std::vector<HookCollective> sum() {
    if (!dtype_ || elements_.numel() == whole_) return {HookCollective::sum(elements_)};
    rounded_ = factors().to(*dtype_);
    std::vector<HookCollective> collectives{HookCollective::sum(rounded_)};
    if (whole_ > 0) collectives.push_back(HookCollective::sum(elements_.narrow(0, 0, whole_)));
    return collectives;
  }

  /// When the sum is there: whether it is finite.
  bool receive() {
    if (rounded_.defined()) factors().copy_(rounded_);
    return all_finite(elements_);
  }

 private:
  at::Tensor factors() const { return elements_.narrow(0, whole_, elements_.numel() - whole_); }

  at::Tensor elements_;
  int64_t whole_ = 0;
  std::optional<at::ScalarType> dtype_;
  at::Tensor rounded_;
};

}  // namespace q7x2
