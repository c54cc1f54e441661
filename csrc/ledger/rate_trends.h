// RateTrends: which of several rates have left their bands, and do not come back.
//
// The rates are of one kind, and are measured together, at rate samples. Each has a band
// (ledger/rate_band.h). What all of them have in common is taken out first: if all change by one
// factor, the machine has, and nothing follows. Then something is to blame for the rates outside.
// What is blamed at three rate samples in a row has changed, and at six if it is a single route; a
// rate sample that covers seconds counts for several. What is faster than before is believed only
// of what was found slow. While that recovers, nothing is believed to be slower: what shares a link
// with it has less of the link again.
//
// All numbers are integers, so ranks that see the same rates decide alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/rated_resource.h"
#include "ledger/rate_band.h"

namespace q7x2 {

class RateTrends {
 public:
  /// What a rate is of, or a change.
  using Resource = RatedResource;
  struct Rate {
    Resource of;
    int64_t rate;
  };
  /// How a rate compares with what it was, in thousandths.
  struct Ratio {
    Resource of;
    int64_t ratio;
    bool is_outside;
  };
  using Ratios = std::map<Resource, int64_t>;
  /// What explains the ratios that are outside, and the ratio of each.
  using Blame = std::function<Ratios(std::vector<Ratio>)>;

  explicit RateTrends(Blame blame) : blame_(std::move(blame)) {}

  /// Another rate sample. `pattern`: only rates of one pattern are compared. `slow`: what was found
  /// slow. `weight`: for how many rate samples it counts.
  void sample(uint64_t pattern, std::span<const Rate> rates, const Ratios& slow, int weight = 1);
  /// What has changed, and its ratio at the last rate sample.
  Ratios changes() const;
  /// The changes are dealt with: nothing is to blame any more.
  void settle() { suspicions_.clear(); }
  /// The same, and all bands begin anew.
  void forget();

 private:
  using Bands = std::map<Resource, RateBand>;
  struct Suspicion {
    int samples = 0;  ///< in a row
    int64_t ratio = RateBand::kOne;
  };

  void suspect(const Ratios& slower, const Ratios& faster, const Ratios& slow, int weight);

  const Blame blame_;
  std::map<uint64_t, Bands> bands_;                            // by pattern
  std::map<std::pair<Resource, bool>, Suspicion> suspicions_;  // by resource; is it slower
  int strays_ = 0;  // rate samples in a row with rates outside, and nothing to blame
};

/// Thousandths of the rate at the beginning; those that are as they were are left out.
int64_t factor_of(const RateTrends::Ratios& factors, const RateTrends::Resource& resource);

/// Multiplies the factors of what has changed. A factor near 1 counts as recovered.
void apply_changes(RateTrends::Ratios& factors, const RateTrends::Ratios& changes);

}  // namespace q7x2
