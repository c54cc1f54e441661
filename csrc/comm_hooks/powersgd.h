// PowerSGD: gradients of matrices as products of two thin ones.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm_hooks/hook.h"
#include "comm_hooks/schedule.h"

namespace q7x2 {

struct PowerSgdOptions {
  /// By parameter number; 0 sends that gradient whole. `default_rank` beyond its end.
  std::vector<int64_t> ranks;
  int64_t default_rank = 1;
  FullPrecision full_precision;
  /// A matrix is compressed where that makes it more than this many times smaller.
  double min_compression_rate = 2;
  bool error_feedback = true;
  /// Starts each step from the last one's factor, not from a random one.
  bool warm_start = true;
  /// One collective a step: the two halves of the power iteration take turns.
  bool alternating = false;
  /// What the factors are rounded to on the wire; none: what they are computed in.
  std::optional<at::ScalarType> factor_dtype;
  uint64_t seed = 0;
};

std::unique_ptr<Hook> make_powersgd(const HookContext& context, PowerSgdOptions options);

/// Of whole buckets.
struct FlatPowerSgdOptions {
  int64_t rank = 1;
  /// By parameter number: never in this hook's buckets.
  std::vector<bool> absent;
  FullPrecision full_precision;
  bool error_feedback = true;
  bool warm_start = true;
  std::optional<at::ScalarType> factor_dtype;
  uint64_t seed = 0;
};

std::unique_ptr<Hook> make_flat_powersgd(const HookContext& context, FlatPowerSgdOptions options);

}  // namespace q7x2
