// What policies know of a step, equal on all ranks: sums over the ranks.
//
// The numbers ride behind what a bucket sends uncompressed, so they cost no message of their own.
// Only a bucket that has no such message, because it travels whole, has a small one for them.
//
//   per gradient   |g|^2, |e|^2, [g != 0], and for each candidate codec the squared error of g + e
//   per bucket     the seconds of the last step, and those in which its messages were under way
//
// g is this rank's share of the mean, the gradient divided by the number of ranks, and e the
// residual before the step: what the last step left behind. Both are divided by the loss scale.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "comm_hooks/run/parameter_policy.h"

namespace q7x2 {

/// Of the last step on this rank, in seconds; 0 before it is known.
struct StepTimes {
  double step = 0;  ///< from the first bucket of a step to that of the next one
  double wire = 0;  ///< with at least one collective under way
};

struct GradientFacts {
  double gradient = 0;         ///< sum over the ranks of |g|^2
  double residual = 0;         ///< the same of |e|^2
  double uses = 0;             ///< ranks whose gradient is not all zeros
  std::vector<double> errors;  ///< by candidate, the sum of squared errors
};

struct StepFacts {
  uint64_t step = 0;
  bool is_finite = true;                      ///< else the step has left no trace in the state
  StepTimes times;                            ///< of the step before, means over the ranks
  std::map<size_t, GradientFacts> gradients;  ///< by parameter number; empty: nothing was measured
};

/// What is measured of one gradient.
struct FactSource {
  at::Tensor gradient;
  at::Tensor residual;  ///< undefined: there is none
  at::Tensor sent;  ///< what is encoded, less the residual: the gradient, or what a transform made
};

/// This rank's numbers, fp32 and of one dimension. `share`: what gradients must be multiplied with
/// to be this rank's share.
at::Tensor measure_facts(const std::vector<FactSource>& sources, const Decision& decision,
                         const StepTimes& times, double share, double scale);

/// `sums`: of what the ranks measured. `times` are set too.
std::vector<GradientFacts> read_facts(const at::Tensor& sums, size_t gradients,
                                      const Decision& decision, int ranks, StepTimes& times);

}  // namespace q7x2
