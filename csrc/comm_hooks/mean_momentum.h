// Momenta of the mean gradient, which all ranks have from what they received.
#pragma once

#include "comm_hooks/signal.h"

namespace q7x2 {

/// m <- f m + (1 - f) g, where m is what all ranks received last, and the sum becomes the next m.
/// In full precision g is sent, and m follows. Tang et al., "1-bit Adam", 2021.
class GlobalMomentum : public Signal {
 public:
  using Signal::Signal;

  bool is_shared() const override { return true; }
  void emit(SignalState& state) const override {
    blend(state, factor_ / ranks_, 1 - factor_);
    state.values.copy_(state.next);
  }
  void receive(SignalState& state) const override { state.next.copy_(state.values); }
  void follow(SignalState& state) const override {
    state.next.copy_(state.now);
    state.next.mul_(factor_).add_(state.values, 1 - factor_);
  }
};

/// The same momentum, of which only the change is sent: (1 - f) (g - m / n), and m <- m + the sum.
/// A codec loses a share of what it is given, and the change is small where the gradients settle.
/// Richtarik et al., "EF21", 2021; Fatkhullin et al., "Momentum provably improves error feedback",
/// 2023.
class DifferenceSignal final : public GlobalMomentum {
 public:
  using GlobalMomentum::GlobalMomentum;

  void emit(SignalState& state) const override {
    blend(state, (factor_ - 1) / ranks_, 1 - factor_);
    state.values.copy_(state.next);
  }
  void receive(SignalState& state) const override {
    state.values.add_(state.now);
    state.next.copy_(state.values);
  }
};

}  // namespace q7x2
