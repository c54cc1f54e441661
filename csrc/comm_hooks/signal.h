// What is compressed: the gradient, or something that is made from it and remembered.
//
// A signal keeps one tensor m per gradient, in the Memory. `emit` makes what this rank sends from
// its gradient g, which is divided by the number n of ranks; `receive` sees the sum of what all
// ranks sent. Residuals are added to what is sent, whatever it is.
//
//   name          sends                         then                          equal on all ranks
//   gradient      g                                                           -
//   accumulated   m <- f m + g                  0 where it was sent           no
//   averaged      m <- f m + (1 - f) g                                        no
//   global        f m / n + (1 - f) g           m <- the sum                  yes
//   difference    (1 - f) (g - m / n)           m <- m + the sum, the result  yes
//
// A new signal is one small header, and one line in signals.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace q7x2 {

/// The tensors of one bucket that a signal works on, all fp32 and laid out in the same way.
struct SignalState {
  at::Tensor values;  ///< the gradients; then what is sent; then what was received
  at::Tensor now;     ///< m
  at::Tensor next;    ///< m of the next step; may be the same tensor
  at::Tensor owed;    ///< with error feedback, if `Signal::masks`: the residuals before the step
  at::Tensor left;    ///< the residuals after it
};

class Signal {
 public:
  /// `factor`: f. `ranks`: n.
  Signal(double factor, int ranks) : factor_(factor), ranks_(ranks) {}
  virtual ~Signal() = default;
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  /// Equal on all ranks.
  virtual bool is_shared() const { return false; }
  /// Uses `owed` and `left` in `receive`.
  virtual bool masks() const { return false; }
  virtual void emit(SignalState& state) const = 0;
  virtual void receive(SignalState& state) const { static_cast<void>(state); }
  /// Of a shared one, in a step of full precision: `values` are the mean gradients.
  virtual void follow(SignalState& state) const { static_cast<void>(state); }

 protected:
  const double factor_;
  const int ranks_;
};

/// What the name of a signal stands for; null for "gradient". Throws Error(kInvalidArgument), which
/// lists the names, for any other.
std::unique_ptr<Signal> make_signal(const std::string& name, double factor, int ranks);

/// next <- old m + fresh g, in this order of operations.
void blend(const SignalState& state, double old, double fresh);

}  // namespace q7x2
