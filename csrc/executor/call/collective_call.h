// CollectiveCall: the buffers and the meaning of one collective.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "executor/call/block_coder.h"
#include "plan/ir/plan.h"

namespace q7x2 {

/// Part of a collective's input or output.
struct Region {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

/// See plan/ir/plan.h for how many regions each collective has.
struct CollectiveCall {
  Collective collective;
  int root = -1;
  /// Flat collectives (all_reduce, reduce, broadcast): one region, the same as `output`. The
  /// others: one per part. Inputs are only read.
  std::vector<Region> input;
  std::vector<Region> output;
  DType dtype = DType::kBytes;  ///< of the elements; kBytes: of no known type
  ReduceKind reduce = ReduceKind::kSum;
  int divisor = 1;  ///< the mean of a sum: the world size
  /// Compressed, if it has a codec: all_reduce, reduce_scatter and all_gather of floats.
  Coding coding;
  /// Messages are memory of a device wherever the elements stay there, and UCX moves them, also
  /// between ranks that share memory. Ranks must agree on it.
  bool is_direct = false;
  /// Parts differ in length between ranks, so that a Plan may not depend on them (all_to_all).
  bool uneven = false;
  /// What else the ranks must agree on and the executor need not know: the caller's element type.
  uint32_t agreed = 0;
  std::string algorithms;  ///< see CallShape
  std::string title;       ///< how the caller calls it, for messages; empty: the collective's name

  /// Of the longest region.
  size_t bytes() const {
    size_t longest = 0;
    for (const Region& region : input) longest = std::max(longest, region.bytes);
    for (const Region& region : output) longest = std::max(longest, region.bytes);
    return longest;
  }
};

}  // namespace q7x2
