// Planner: picks the Plan, the slice length and the window for a call, and remembers the choice.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/types.h"
#include "plan/generators.h"
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
  /// kFlat: bytes of a slice, a multiple of 64 times the sum of the part weights. kBlocked: bytes
  /// of a part in a slice, a multiple of 64. Never zero, and equal on all ranks. So slices, and the
  /// parts of all slices but a shorter last one, begin at whole elements of every dtype. Where the
  /// parts of a slice begin says `part_begin`.
  size_t slice_bytes = 0;
  /// The length of a scratch block, and of the longest part of a slice. A multiple of 64.
  size_t part_bytes = 0;
  /// Slices in progress at once, 1 ... kMaxWindow.
  int window = 1;

  static constexpr int kMaxWindow = 16;
};

/// One per group. Thread-safe.
class Planner {
 public:
  /// `one_host`: all ranks share one host (equal on all ranks).
  /// `forced`: algorithm names that alone may be chosen, from `Q7X2_ALGO` ("ring,binomial_tree"),
  /// empty for a free choice; a name nobody knows throws Error(kInvalidArgument) that lists what
  /// exists, and collectives that none of the forced algorithms offers are chosen freely.
  Planner(int rank, int world_size, bool one_host, const std::string& forced);

  /// Throws Error(kInvalidArgument) where a rooted collective has no valid root.
  Choice choose(const CallShape& shape);

 private:
  /// Calls that are alike in these share a choice: collective, root, wide accumulation, and the
  /// smallest power of two that is not less than the bytes.
  using Key = std::tuple<Collective, int, bool, size_t>;

  Choice make_choice(const CallShape& shape, size_t size_class) const;
  const Generator& pick(const CallShape& shape, size_t size_class) const;

  const int rank_;
  const int world_size_;
  const bool one_host_;
  const std::vector<std::string> forced_;
  std::mutex mutex_;
  std::map<Key, Choice> cache_;
};

}  // namespace q7x2
