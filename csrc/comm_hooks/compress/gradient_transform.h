// GradientTransform: what is compressed: the gradient, or something that is computed from it and
// stored.
//
// A transform stores a tensor m per gradient, in the ErrorFeedback. `emit` computes what this rank
// sends from its gradient g, which is divided by the number n of ranks; `receive` gets the sum over
// all ranks of what they sent. Residuals are added to what is sent in all cases.
//
//   name          sends                         then                          equal on all ranks
//   gradient      g                                                           -
//   accumulated   m <- f m + g                  0 where m was sent           no
//   averaged      m <- f m + (1 - f) g                                        no
//   lion          f m + (1 - f) g               m <- k m + (1 - k) g          no
//   global        f m / n + (1 - f) g           m <- the sum                  yes
//   difference    (1 - f) (g - v)               m <- m + the sum, the result  yes
//                 and v <- f v + (1 - f) g, this rank's
//
// A new transform is one small header, and one line in gradient_transforms.cpp.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

namespace q7x2 {

/// Options of what is compressed.
struct TransformOptions {
  std::string name = "gradient";
  double momentum = 0;       ///< f
  double kept_momentum = 0;  ///< k
};

/// The tensors of one bucket that a transform uses, all fp32 and in the same layout.
struct TransformState {
  at::Tensor values;  ///< the gradients; then what is sent; then what was received
  at::Tensor now;     ///< m
  at::Tensor next;    ///< m of the next step; may be the same tensor
  at::Tensor own;     ///< if `GradientTransform::keeps_own`: this rank's second state
  at::Tensor own_next;
  at::Tensor
      owed;  ///< with error feedback, if `GradientTransform::masks`: the residuals before the step
  at::Tensor left;  ///< with error feedback: the residuals after it
};

class GradientTransform {
 public:
  /// `ranks`: n.
  GradientTransform(const TransformOptions& options, int ranks)
      : factor_(options.momentum), kept_factor_(options.kept_momentum), ranks_(ranks) {}
  virtual ~GradientTransform() = default;
  GradientTransform(const GradientTransform&) = delete;
  GradientTransform& operator=(const GradientTransform&) = delete;

  /// Whether m is equal on all ranks.
  virtual bool is_shared() const { return false; }
  /// Whether it uses `own`. Zeros in `own` and in the residuals must be consistent with any m:
  /// undoing a step may leave them there.
  virtual bool keeps_own() const { return false; }
  /// Whether it uses `owed` in `receive`.
  virtual bool masks() const { return false; }
  virtual void emit(TransformState& state) const = 0;
  virtual void receive(TransformState& state) const { static_cast<void>(state); }
  /// Only for a shared one, in a step of full precision: `values` are the mean gradients.
  virtual void follow(TransformState& state) const { static_cast<void>(state); }

 protected:
  const double factor_;
  const double kept_factor_;
  const int ranks_;
};

/// The transform with this name; null for "gradient". Throws Error(kInvalidArgument), with a list
/// of the names, for an unknown name.
std::unique_ptr<GradientTransform> make_gradient_transform(const TransformOptions& options,
                                                           int ranks);

/// next <- old m + fresh g, in this order of operations.
void blend(const TransformState& state, double old, double fresh);

}  // namespace q7x2
