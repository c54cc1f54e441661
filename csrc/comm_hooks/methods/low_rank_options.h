// The options of PowerSGD; see low_rank.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

namespace q7x2 {

struct LowRankOptions {
  std::vector<int64_t> ranks;  ///< the largest ranks that a policy may choose
  int64_t default_rank = 1;
  double min_compression_rate = 2;
  bool warm_start = true;
  uint64_t reset_every = 0;
  bool alternating = false;
  std::optional<at::ScalarType> factor_dtype;
  bool over_stock = false;
  uint64_t random_seed = 0;
};

}  // namespace q7x2
