// PricedSchedule: a Schedule that could serve a call, the ways to cut the call's data for it, and
// the predicted time of each.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/cost_model.h"
#include "plan/cost/simulator.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// How the data is cut; see Choice. Lengths are in bytes.
struct Cut {
  size_t slice_bytes;
  size_t part_bytes;
  int window;
};

class PricedSchedule {
 public:
  /// `site` must outlive it. `is_uneven`: parts have different lengths.
  PricedSchedule(std::shared_ptr<const Schedule> schedule, const Site& site,
                 const CodingCost& coding, bool is_uneven);

  const Schedule& schedule() const { return *schedule_; }
  const std::string& name() const { return schedule_->algorithm(); }

  /// Cuts into parts of at most `part_bytes`; of less if memory is short.
  Cut cut(size_t bytes, size_t part_bytes, int window) const;
  /// Cuts into slices of `slice_bytes`, or of the next longer possible length; of less if memory is
  /// short.
  Cut in_slices(size_t bytes, size_t slice_bytes, int window) const;

  /// The seconds that the cost model estimates.
  double estimate(size_t bytes, const Cut& cut) const;
  /// The estimate of the cost model, with the loads of all resources.
  Prediction estimate_loads(size_t bytes, const Cut& cut) const;
  /// A lower bound, in seconds, of all simulations: the time of its busiest wire at full rate.
  double bound(size_t bytes) const;
  /// The prediction of the simulator. `max_slices`: see SimulatedCall. The first simulation makes
  /// Plans: for all ranks, or, if possible and worthwhile, for some ranks that represent all.
  Prediction simulate(size_t bytes, const Cut& cut, int max_slices);
  /// For a call that was simulated: the seconds that it takes after a silence, see SimulatedCall.
  /// 0 if it was not simulated, or has too many ops.
  double simulate_after_silence(size_t bytes, const Cut& cut);
  /// About the number of ops of all ranks for one slice: the price of simulating it.
  double ops() const;
  /// The price of making the Plans of all ranks, in simulated ops; 0 if they exist.
  double making() const;

  /// Whether the window of slices exceeds the queue of a NIC to which several hosts send. `ratio`:
  /// bytes of a message per byte of its part.
  bool floods(const Cut& cut, double ratio) const;

 private:
  /// The same as `ops`, of the ranks that represent all.
  double ops_of_some() const;
  /// The longest part with which the scratch blocks and the staged messages of `window` slices fit.
  size_t longest_part(int window) const;

  std::shared_ptr<const Schedule> schedule_;
  const Site& site_;
  const CodingCost coding_;
  const bool is_uneven_;
  const size_t alignment_;
  const CostModel model_;
  size_t total_weight_ = 1;
  size_t heaviest_ = 1;
  std::optional<Prediction> simulate_some(const SimulatedCall& call);

  std::vector<Plan> plans_;
  std::optional<Simulator> simulator_;  // over plans_
  std::vector<Plan> some_plans_;        // the Plans of ranks that represent all
  std::optional<Simulator> some_;       // over some_plans_
  bool has_looked_for_some_ = false;
};

}  // namespace q7x2
