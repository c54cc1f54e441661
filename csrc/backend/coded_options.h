// CodedOptions: how a collective is compressed.
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
  std::string codec = "none";  ///< "auto": the cheapest within `max_error`, or none
  /// Of "auto": the relative error (L2) that one rounding of normal numbers may have.
  double max_error = 0;
  c10d::ReduceOp op = c10d::ReduceOp::SUM;
  /// One a tensor, fp32, as many elements: added to what this rank gives, and what was lost is kept
  /// in them. Empty: what is lost is lost.
  std::vector<at::Tensor> errors = {};
  uint64_t seed = 0;
  /// Random numbers go by it, the same on all ranks; none: the group's compressed calls so far.
  std::optional<uint64_t> step = {};
  /// Infinities or NaNs in the result are an error, on every rank that has them.
  bool refuses_nonfinite = false;
  EdgeWish edges = EdgeWish::kAuto;  ///< which messages are compressed
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool async_op = true;
};

}  // namespace q7x2
