// Momenta that each rank keeps of its own gradients.
#pragma once

#include "comm_hooks/compress/gradient_transform.h"

namespace q7x2 {

/// u <- f u + g, and u is sent: the momentum of SGD. Elements of u that were sent restart from
/// zero. If the ranks of a host sum first and then compress, elements that any host sent restart.
/// Lin et al., "Deep gradient compression", 2018.
class AccumulatedMomentum final : public GradientTransform {
 public:
  using GradientTransform::GradientTransform;

  bool masks() const override { return true; }
  void emit(TransformState& state) const override {
    blend(state, factor_, 1);
    state.values.copy_(state.next);
  }
  void receive(TransformState& state) const override {
    if (!state.owed.defined()) return;
    // An element that was sent is in the sum, and most of it has left its residual. Other elements
    // stay in the residual, changed only by the owner's rounding of a sum. If the ranks of a host
    // sum first, then compress, elements leave the residual anyway: then the sum decides.
    const at::Tensor all = state.owed + state.next;
    const at::Tensor sent = (state.left - all).abs_() > all.abs().mul_(0.5);
    state.next.masked_fill_(sent.logical_and(state.values != 0), 0);
  }
};

/// u <- f u + (1 - f) g, and u is sent. Bernstein et al., "signSGD", 2018.
class AveragedMomentum final : public GradientTransform {
 public:
  using GradientTransform::GradientTransform;

  void emit(TransformState& state) const override {
    blend(state, factor_, 1 - factor_);
    state.values.copy_(state.next);
  }
};

/// f u + (1 - f) g is sent, and u <- k u + (1 - k) g: the update of Lion before the sign is taken,
/// so the codec must be "sign". Liu et al., "Communication efficient distributed training with
/// distributed Lion", 2024.
class LionUpdate final : public GradientTransform {
 public:
  using GradientTransform::GradientTransform;

  void emit(TransformState& state) const override {
    const at::Tensor sent = state.now * factor_;
    sent.add_(state.values, 1 - factor_);
    blend(state, kept_factor_, 1 - kept_factor_);
    state.values.copy_(sent);
  }
};

}  // namespace q7x2
