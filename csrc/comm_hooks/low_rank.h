// PowerSGD: gradients of matrices as products of two thin ones.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm_hooks/compressor.h"

namespace q7x2 {

struct LowRankOptions {
  /// By parameter number; 0 sends that gradient whole. `default_rank` beyond its end.
  std::vector<int64_t> ranks;
  int64_t default_rank = 1;
  /// A matrix is compressed where that makes it more than this many times smaller.
  double min_compression_rate = 2;
  /// Starts each step from the last one's factor, not from a random one.
  bool warm_start = true;
  /// With `warm_start`: every so many compressed steps a step starts from random factors all the
  /// same; 0: never.
  uint64_t reset_every = 0;
  /// One collective a step: the two halves of the power iteration take turns.
  bool alternating = false;
  /// What the factors are rounded to on the wire; none: what they are computed in.
  std::optional<at::ScalarType> factor_dtype;
  uint64_t seed = 0;
};

std::unique_ptr<Compressor> make_low_rank(const HookContext& context, LowRankOptions options);

/// Of whole buckets.
struct FlatLowRankOptions {
  int64_t rank = 1;
  /// By parameter number: never in this hook's buckets.
  std::vector<bool> absent;
  bool warm_start = true;
  std::optional<at::ScalarType> factor_dtype;
  uint64_t seed = 0;
};

std::unique_ptr<Compressor> make_flat_low_rank(const HookContext& context,
                                               FlatLowRankOptions options);

}  // namespace q7x2
