// RateTrends: which of several rates have left their bands for good.
//
// The rates are of one kind, and are measured together, at rate samples. Each has a band
// (ledger/rate_band.h). First, the common change of all rates is removed: if all change by one
// factor, the whole machine has changed, and no resource is the cause. But if all fall below a
// third, and other resources of the kind are not in use, all that are in use are the cause. Then a
// cause is sought for the rates outside their bands. A resource that is the cause at three rate
// samples in a row has changed; a single route needs six. A rate sample that covers seconds counts
// as several. Only resources that were found slow can become faster. While one of them recovers, no
// other resource is found slower, because a resource that shares a link with it now gets less of
// the link.
//
// All numbers are integers, so ranks with the same rates make the same decisions.
#pragma once

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
  /// The resource of a rate, or of a change.
  using Resource = RatedResource;
  struct Rate {
    Resource of;
    int64_t rate;
  };
  /// Ratio of a rate to its normal value, in thousandths.
  struct Ratio {
    Resource of;
    int64_t ratio;
    bool is_outside;
  };
  using Ratios = std::map<Resource, int64_t>;
  /// Finds the causes of the ratios that are outside their bands, and the ratio of each cause.
  using Blame = std::function<Ratios(std::vector<Ratio>)>;

  /// `blame`: given the ratios without their common change. `blame_all`: given all, if the common
  /// change is a collapse; null: then there is no cause.
  explicit RateTrends(Blame blame, Blame blame_all = nullptr)
      : blame_(std::move(blame)), blame_all_(std::move(blame_all)) {}

  /// Adds a rate sample. `pattern`: only rates of the same pattern are compared. `slow`: resources
  /// that were found slow. `weight`: number of rate samples that it counts as.
  void sample(uint64_t pattern, std::span<const Rate> rates, const Ratios& slow, int weight = 1);
  /// The resources that have changed, with their ratios at the last rate sample.
  Ratios changes() const;
  /// The changes have been handled: there is no suspicion any more.
  void settle() { suspicions_.clear(); }
  /// The same, and all bands start again.
  void forget();

 private:
  using Bands = std::map<Resource, RateBand>;
  struct Suspicion {
    int samples = 0;  ///< in a row
    int64_t ratio = RateBand::kOne;
  };

  void suspect(const Ratios& slower, const Ratios& faster, const Ratios& slow, int weight);

  /// What is to be suspected of a collapse of all rates; empty if they have not collapsed.
  Ratios blame_collapse(Bands& bands, std::span<const Rate> rates, int64_t best) const;

  const Blame blame_;
  const Blame blame_all_;
  std::map<uint64_t, Bands> bands_;  // by pattern
  // by resource, and whether it is slower
  std::map<std::pair<Resource, bool>, Suspicion> suspicions_;
  int strays_ = 0;  // number of rate samples in a row with rates outside and no cause
};

/// Rate in thousandths of the first rate; 1000 if it is not in `factors`.
int64_t factor_of(const RateTrends::Ratios& factors, const RateTrends::Resource& resource);

/// Multiplies the factors of the changed resources. A factor near 1 counts as recovered.
void apply_changes(RateTrends::Ratios& factors, const RateTrends::Ratios& changes);

}  // namespace q7x2
