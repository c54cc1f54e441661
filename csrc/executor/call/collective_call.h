// CollectiveCall: the arguments of one collective: buffers, reduction, element type and codec.
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

/// A consecutive piece of a collective's input or output.
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
  DType dtype = DType::kBytes;  ///< type of the elements; kBytes: unknown
  ReduceKind reduce = ReduceKind::kSum;
  int divisor = 1;  ///< sums are divided by it; for a mean it is the world size
  /// The compression, if it has a codec. Only all_reduce, reduce_scatter and all_gather of floats
  /// can have one.
  Coding coding;
  /// Whether UCX sends from and receives into device memory if the elements stay on a device, also
  /// between ranks that share host memory. All ranks must agree on it.
  bool is_direct = false;
  /// Whether the lengths of parts differ between ranks, so that the Plan must not depend on them
  /// (all_to_all).
  bool uneven = false;
  /// A number that must be equal on all ranks, and that the executor does not interpret: the
  /// caller's element type.
  uint32_t agreed = 0;
  std::string algorithms;  ///< see CallShape
  std::string title;       ///< the caller's name for it, in messages; empty: the collective's

  /// Bytes of the longest region.
  size_t bytes() const {
    size_t longest = 0;
    for (const Region& region : input) longest = std::max(longest, region.bytes);
    for (const Region& region : output) longest = std::max(longest, region.bytes);
    return longest;
  }
};

}  // namespace q7x2
