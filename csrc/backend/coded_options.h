// CodedOptions: the options of a compressed collective.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/torch_compat.h"
#include "plan/ir/edge_coding.h"

namespace q7x2 {

/// See kernels/codec/codec_spec.h for the names of codecs.
struct CodedOptions {
  std::string codec = "none";  ///< "auto": the cheapest codec within `max_error`, or none
  /// For "auto": the largest relative error (L2) of one encoding of normal random numbers.
  double max_error = 0;
  c10d::ReduceOp op = c10d::ReduceOp::SUM;
  /// One residual per tensor: fp32, with as many elements. They are added to this rank's
  /// contribution, and replaced by the new errors. Empty: no error feedback.
  std::vector<at::Tensor> errors = {};
  uint64_t seed = 0;
  /// Selects the random numbers, together with `seed`. Equal on all ranks. None: the number of the
  /// group's compressed calls so far.
  std::optional<uint64_t> step = {};
  /// Whether infinities or NaNs in the result are an error, on every rank that has them.
  bool refuses_nonfinite = false;
  EdgeWish edges = EdgeWish::kAuto;  ///< which messages are compressed
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool async_op = true;
};

}  // namespace q7x2
