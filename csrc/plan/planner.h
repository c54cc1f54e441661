// Planner: picks the Plan, the slice length and the window for a call, and remembers the choice.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/types.h"
#include "plan/plan.h"

namespace q7x2 {

/// What a choice depends on. Every field is equal on all ranks of the group for one call, so that
/// all choose alike without talking.
struct CallShape {
  Collective collective;
  /// kFlat: bytes of the whole buffer. kBlocked: bytes of one part where all parts are equal, else
  /// `kUneven`.
  size_t bytes = 0;
  int root = -1;
  /// Partial sums must be held in a wider type: only Plans that round once may be chosen.
  bool wide_accumulation = false;

  static constexpr size_t kUneven = ~size_t{0};
};

struct Choice {
  std::shared_ptr<const Plan> plan;
  /// kFlat: bytes of a slice. kBlocked: bytes of a part in a slice. A multiple of 64.
  size_t slice_bytes = 0;
  /// Slices in progress at once, 1 ... kMaxWindow.
  int window = 1;

  static constexpr int kMaxWindow = 16;
};

/// One per group. Thread-safe.
class Planner {
 public:
  /// `one_host`: all ranks share one host (equal on all ranks).
  /// `forced`: algorithm names that alone may be chosen, from `Q7X2_ALGO` ("ring,tree"); a name
  /// nobody knows throws Error(kInvalidArgument) that lists what exists, and collectives that none
  /// of the forced algorithms offers are chosen freely.
  Planner(int rank, int world_size, bool one_host, const std::string& forced);

  Choice choose(const CallShape& shape);

 private:
  int rank_;
  int world_size_;
  bool one_host_;
  std::string forced_;
  std::mutex mutex_;
  std::unordered_map<std::string, Choice> cache_;
};

}  // namespace q7x2
