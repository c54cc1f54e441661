// Momenta of the mean gradient, which all ranks compute from what they received.
#pragma once

#include "comm_hooks/compress/gradient_transform.h"

namespace q7x2 {

/// m <- f m + (1 - f) g, in which m is what all ranks received last; the sum becomes the next m. In
/// full precision g is sent, and m is updated. Tang et al., "1-bit Adam", 2021.
class GlobalMomentum : public GradientTransform {
 public:
  using GradientTransform::GradientTransform;

  bool is_shared() const override { return true; }
  void emit(TransformState& state) const override {
    blend(state, factor_ / ranks_, 1 - factor_);
    state.values.copy_(state.next);
  }
  void receive(TransformState& state) const override { state.next.copy_(state.values); }
  void follow(TransformState& state) const override {
    state.next.copy_(state.now);
    state.next.mul_(factor_).add_(state.values, 1 - factor_);
  }
};

/// Each rank has a momentum v of its own gradients, and sends its change: (1 - f) (g - v). What all
/// ranks sent is added up in m, the result: m and the residuals together are the sum of all v. The
/// changes shrink when gradients settle, and a codec's error is proportional to its input.
///
/// v - m / n is stored instead of v, so that zeros are consistent with any m.
/// Richtarik et al., "EF21", 2021; Fatkhullin et al., "Momentum provably improves error feedback",
/// 2023.
class DifferenceTransform final : public GlobalMomentum {
 public:
  using GlobalMomentum::GlobalMomentum;

  bool keeps_own() const override { return true; }
  void emit(TransformState& state) const override {
    at::Tensor v = state.own_next;
    at::add_out(v, state.own, state.now, 1.0 / ranks_);
    state.values.sub_(v).mul_(1 - factor_);
    v.add_(state.values);
  }
  void receive(TransformState& state) const override {
    state.values.add_(state.now);
    state.next.copy_(state.values);
    state.own_next.sub_(state.next, 1.0 / ranks_);
  }
  /// All ranks continue from the mean momentum, because their own momenta were not sent.
  void follow(TransformState& state) const override {
    GlobalMomentum::follow(state);
    if (state.own_next.defined()) state.own_next.zero_();
    if (state.left.defined()) state.left.zero_();
  }
};

}  // namespace q7x2
