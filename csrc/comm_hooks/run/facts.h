// What policies know about a step: sums over the ranks, so they are equal on all ranks.
//
// The numbers are sent after what a bucket sends uncompressed, so they need no message of their
// own. Only a bucket that has no such message, because it is sent whole, has a small extra message
// for them.
//
//   per gradient   |g|^2, |e|^2, [g != 0], and for each candidate codec the squared error of g + e
//   per bucket     seconds of the last step, and seconds in which its messages were in flight
//
// g is this rank's share of the mean: the gradient divided by the number of ranks. e is the
// residual before the step, which is the residual after the last one. Both are divided by the loss
// scale.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "comm_hooks/run/parameter_policy.h"

namespace q7x2 {

/// Times of the last step on this rank, in seconds; 0 if unknown.
struct StepTimes {
  double step = 0;  ///< from the first bucket of a step to that of the next one
  double wire = 0;  ///< with at least one collective in flight
};

struct GradientFacts {
  double gradient = 0;         ///< sum over the ranks of |g|^2
  double residual = 0;         ///< sum over the ranks of |e|^2
  double uses = 0;             ///< number of ranks whose gradient is not all zeros
  std::vector<double> errors;  ///< by candidate: sum of squared errors
};

struct StepFacts {
  uint64_t step = 0;
  bool is_finite = true;                      ///< otherwise the step has not changed the state
  StepTimes times;                            ///< those of the step before, means over the ranks
  std::map<size_t, GradientFacts> gradients;  ///< by parameter number; empty: nothing was measured
};

/// What is measured for one gradient.
struct FactSource {
  at::Tensor gradient;
  at::Tensor residual;  ///< undefined: there is none
  /// what is encoded, without the residual: the gradient, or the result of a transform
  at::Tensor sent;
};

/// This rank's numbers, fp32 and of one dimension. `share`: the factor that makes gradients this
/// rank's share.
at::Tensor measure_facts(const std::vector<FactSource>& sources, const Decision& decision,
                         const StepTimes& times, double share, double scale);

/// `sums`: sums over the ranks of the measured numbers. Also sets `times`.
std::vector<GradientFacts> read_facts(const at::Tensor& sums, size_t gradients,
                                      const Decision& decision, int ranks, StepTimes& times);

}  // namespace q7x2
